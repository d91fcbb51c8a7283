package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/testkit"
)

// Without a terminal a line tells every 10 seconds how far the operation is.
func TestProgressInLines(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out, "verify", false)
	p.interval = 10 * time.Second
	now := p.start
	p.now = func() time.Time { return now }
	for i := range int64(100) {
		now = now.Add(time.Second)
		p.show(i, 1000, "")
	}
	p.show(100, 0, "folder a")
	p.end()
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 10 || lines[0] != "verify: 9 of 1,000, 0.9 a second, about 18m21s left" {
		t.Errorf("%d lines:\n%s", len(lines), &out)
	}
	out.Reset()
	now = now.Add(p.interval)
	p.show(1100, 0, "folder a")
	if out.String() != "verify: 1,100, 10 a second: folder a\n" {
		t.Errorf("without a total: %q", &out)
	}
}

// Steps may be bytes.
func TestProgressInBytes(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out, "gc", false)
	p.bytes, p.interval = true, 10*time.Second
	now := p.start.Add(p.interval)
	p.now = func() time.Time { return now }
	p.show(1<<30, 3<<30, "")
	if out.String() != "gc: 1 GiB of 3 GiB, 102.4 MiB a second, about 20s left\n" {
		t.Errorf("%q", &out)
	}
}

// Long operations show their progress on a terminal.
func TestLongOperationsShowProgress(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("COLUMNS", "")
	dir := t.TempDir()
	t.Chdir(dir)
	trace := traceFile(t, goodLine+goodLine)
	for _, c := range []struct {
		shown string
		args  []string
	}{
		{"replay", small("replay", trace, "--file-dir", "files")},
		{"replay", small("replay", trace, "--log-dir", "log")},
		{"verify files", []string{"store", "verify", "files"}},
		{"verify log", []string{"store", "verify", "log"}},
		{"verify files", []string{"store", "verify", "--repair", "files"}},
		{"verify log", []string{"store", "verify", "--repair", "log"}},
		{"gc files", []string{"store", "gc", "files", "--max-bytes", "0"}},
		{"gc log", []string{"store", "gc", "log", "--max-bytes", "0"}},
		{"file", tinyFile(dir, "--work", "read", "--from", "page-cache", "--budget", "20s")},
		{"copy-engine", []string{"calibrate", "--device", "sim", "--memory", "1MiB", "--budget", "20ms", "--profile-dir", "p"}},
		{"posix, 4 KiB", []string{"calibrate", "--file-dir", dir, "--budget", "20ms", "--profile-dir", "p"}},
	} {
		tty, written := testkit.Terminal(t, 100)
		var out bytes.Buffer
		if code := run(t.Context(), c.args, &out, tty); code != exitOK {
			t.Fatalf("%v: exit code %d: %s", c.args, code, written())
		}
		if bar := written(); !strings.Contains(bar, c.shown) || !strings.Contains(bar, "%") {
			t.Errorf("%v shows no progress: %q", c.args, bar)
		}
	}
}

func TestProgressAsABar(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out, "verify", true)
	for i := range int64(11) {
		p.show(i, 10, "")
		time.Sleep(110 * time.Millisecond)
	}
	p.end()
	if s := out.String(); !strings.Contains(s, "verify") || !strings.Contains(s, "5/10") || !strings.HasSuffix(s, "\r") {
		t.Errorf("%q", s)
	}
}
