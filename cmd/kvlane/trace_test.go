package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/testkit"
)

// A trace may come from a pipe, which can be read only once: /dev/stdin, or /dev/fd/N of a shell's
// process substitution.
func TestDefectTraceFromAPipe(t *testing.T) {
	for name, text := range map[string]string{"short": goodLine + goodLine, "longer than a pipe": strings.Repeat(goodLine, 5000)} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		var writing sync.WaitGroup
		writing.Go(func() {
			_, err := w.WriteString(text)
			if err = errors.Join(err, w.Close()); err != nil {
				t.Error(err)
			}
		})
		code, stdout, stderr := execute(t, small("replay", fmt.Sprintf("/dev/fd/%d", r.Fd()))...)
		if code != exitOK || !strings.Contains(stdout, "✓ all requests replayed") {
			t.Errorf("%s: exit code %d: %s", name, code, stderr)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		writing.Wait()
	}
}

// replay waits until a process opens a FIFO for writing.
func TestDefectTraceFromAFIFO(t *testing.T) {
	fifo := makeFIFO(t)
	var writing sync.WaitGroup
	writing.Go(func() {
		time.Sleep(50 * time.Millisecond) // meanwhile the command waits
		if err := os.WriteFile(fifo, []byte(goodLine), 0o600); err != nil {
			t.Error(err)
		}
	})
	code, stdout, stderr := execute(t, small("replay", fifo, "--limit", "1")...)
	writing.Wait()
	if code != exitOK || !strings.Contains(stdout, "✓ all requests replayed") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// A trace may start with a byte order mark, which editors of other systems write.
func TestDefectTraceWithAByteOrderMark(t *testing.T) {
	code, stdout, stderr := execute(t, small("replay", traceFile(t, "\ufeff"+goodLine))...)
	if code != exitOK || !strings.Contains(stdout, "✓ all requests replayed") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// The names "-" and /dev/stdin mean standard input, which may be a pipe.
func TestDefectTraceFromStandardInput(t *testing.T) {
	bin := command(t)
	for _, name := range []string{"-", "/dev/stdin"} {
		cmd := exec.CommandContext(t.Context(), bin, small("replay", name)...)
		cmd.Stdin = strings.NewReader(goodLine)
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "✓ all requests replayed") {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}

// The first interrupt ends every command that reads a file, even a FIFO that no process writes to.
func TestDefectInterruptEndsTheWaitForAFIFO(t *testing.T) {
	for _, args := range [][]string{
		{"replay", "FIFO", "--device", "sim"},
		{"bench", "copy", "--from", "FIFO"},
		{"bench", "copy", "--device", "sim", "--compare", "FIFO"},
	} {
		for _, opened := range []bool{false, true} { // for writing, by a process that writes nothing
			fifo := makeFIFO(t)
			for i := range args {
				args[i] = strings.Replace(args[i], "FIFO", fifo, 1)
			}
			if opened {
				w, err := os.OpenFile(fifo, os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer w.Close()
			}
			ctx, interrupt := context.WithCancel(t.Context())
			type result struct {
				code   int
				stderr string
			}
			done := make(chan result, 1)
			go func() {
				var out, errs bytes.Buffer
				code := run(ctx, args, &out, &errs)
				done <- result{code, errs.String()}
			}()
			time.Sleep(50 * time.Millisecond)
			interrupt()
			select {
			case r := <-done:
				if r.code != exitFailure || !strings.Contains(r.stderr, "canceled") {
					t.Errorf("%v: exit code %d: %s", args, r.code, r.stderr)
				}
			case <-time.After(testkit.Patience()):
				t.Errorf("%v: still waiting", args)
				if w, err := os.OpenFile(fifo, os.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
					_ = w.Close()
				}
				<-done
			}
			for i := range args {
				args[i] = strings.Replace(args[i], fifo, "FIFO", 1)
			}
		}
	}
}

func makeFIFO(t *testing.T) string {
	t.Helper()
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	return fifo
}
