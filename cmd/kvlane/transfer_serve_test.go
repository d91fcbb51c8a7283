package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestServeEndsWhileItsOutputIsNotRead checks that serve ends on an interrupt even if notifications
// have filled standard output, which is not read.
func TestServeEndsWhileItsOutputIsNotRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("kv"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, protocol := range []string{"mooncake", "tcp"} {
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		r, w := io.Pipe()
		var stderr bytes.Buffer
		done := make(chan int, 1)
		go func() {
			done <- run(ctx, []string{"transfer", "serve", "--protocol", protocol, "--name", "127.0.0.1:0", "--buffer-size", "64KiB"}, w, &stderr)
		}()
		line, err := bufio.NewReader(r).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(line, "segment "), ": ")
		for range 2 { // one is being written, and the other waits
			if code, _, stderr := execute(t, "transfer", "put", name, file, "--protocol", protocol, "--notify", "x"); code != exitOK {
				t.Fatalf("%s: exit code %d: %s", protocol, code, stderr)
			}
		}
		interrupt()
		code := <-done
		_ = r.Close() // ends the pending write
		if code != exitFailure || !strings.Contains(stderr.String(), "standard output is not read") {
			t.Errorf("%s: exit code %d: %s", protocol, code, stderr.String())
		}
	}
}

// TestServeWithoutRuntimeDirectory checks that an unusable directory for sockets disables only the
// paths that need it.
func TestServeWithoutRuntimeDirectory(t *testing.T) {
	dir := t.TempDir()
	taken := filepath.Join(dir, "taken")
	if err := os.MkdirAll(filepath.Join(taken, "kvlane"), 0o755); err != nil { // other users may enter it
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Join(dir, "absent"), taken} {
		t.Setenv("XDG_RUNTIME_DIR", dir)
		for protocol, want := range map[string]string{"tcp": "", "auto": "shared memory is not used: "} {
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			r, w := io.Pipe()
			var stderr bytes.Buffer
			done := make(chan int, 1)
			go func() {
				code := run(ctx, []string{"transfer", "serve", "--protocol", protocol, "--name", "127.0.0.1:0", "--buffer-size", "64KiB"}, w, &stderr)
				_ = w.Close()
				done <- code
			}()
			line, _ := bufio.NewReader(r).ReadString('\n')
			name, _, _ := strings.Cut(strings.TrimPrefix(line, "segment "), ": ")
			if code, _, stderr := execute(t, "transfer", "probe", name, "--protocol", protocol); code != exitOK {
				t.Errorf("%s: exit code %d: %s", protocol, code, stderr)
			}
			interrupt()
			_, _ = io.Copy(io.Discard, r)
			if code := <-done; code != exitOK || !strings.HasPrefix(stderr.String(), want) || (want == "") != (stderr.Len() == 0) {
				t.Errorf("%s: exit code %d: %s", protocol, code, stderr.String())
			}
			if want != "" && !strings.Contains(stderr.String(), "XDG_RUNTIME_DIR") {
				t.Errorf("%s: %s", protocol, stderr.String())
			}
		}
		code, _, stderr := execute(t, "transfer", "serve", "--protocol", "shm", "--name", "127.0.0.1:0", "--buffer-size", "64KiB")
		if code == exitOK || !strings.Contains(stderr, "XDG_RUNTIME_DIR") {
			t.Errorf("shm: exit code %d: %s", code, stderr)
		}
	}
}

// TestServeRefusesNames checks that serve refuses a name at which peers cannot find the segment,
// and suggests a valid form.
func TestServeRefusesNames(t *testing.T) {
	for _, c := range [][]string{{"mooncake", "127.0.0.1"}, {"mooncake", "::1:17014"}, {"tcp", "127.0.0.1"}, {"tcp", "::1:17014"}} {
		code, _, stderr := execute(t, "transfer", "serve", "--protocol", c[0], "--name", c[1], "--buffer-size", "64KiB")
		if code != exitUsage || !strings.Contains(stderr, "HOST:PORT") || !strings.Contains(stderr, "in brackets") {
			t.Errorf("%v: exit code %d: %s", c, code, stderr)
		}
	}
}

// TestPathThatDoesNotReachTheMemory checks that the error names the path that reaches the memory
// and the flag that selects it.
func TestPathThatDoesNotReachTheMemory(t *testing.T) {
	p := interruptible(t, "transfer", "serve", "--protocol", "auto", "--use-vram", "--device", "sim", "--name", "127.0.0.1:0", "--buffer-size", "1MiB")
	name, _, _ := strings.Cut(p.word(t, "segment "), ": ")
	code, _, stderr := execute(t, "bench", "transfer", "--segment", name, "--protocol", "shm", "--use-vram", "--device", "sim",
		"--duration", "1ms", "--block-size", "4KiB", "--batch-size", "1", "--threads", "1", "--buffer-size", "1MiB")
	if code != exitFailure || strings.Count(stderr, "not supported") != 1 || !strings.Contains(stderr, "reached by nvlink") ||
		!strings.Contains(stderr, "Next: select that path (--protocol)") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}
