package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/bench/file"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/stream"
)

func tinyFile(dir string, more ...string) []string {
	return append([]string{"bench", "file", "--dir", dir, "--bytes", "64KiB", "--sizes", "4KiB", "--budget", "3s", "--order", "scattered"}, more...)
}

func TestBenchFileFlagsAreChecked(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"names": {
			[]string{"--dir", "", "--device", "tape", "--transfers", "0", "--cufile-queues", "-1", "--direct", "perhaps", "--sizes", "1,x", "--work", "idle", "--order", "up", "--from", "tape", "--at-once", "1TiB"},
			[]string{"no directory", `--device "tape"`, "--transfers 0: must", "--cufile-queues -1: must", `direct "perhaps"`, "--sizes", "1 bytes", `"idle"`, `"up"`, "bytes at once"},
		},
		"no point is left": {[]string{"--work", "write", "--from", "page-cache"}, []string{"no point is left"}},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := execute(t, tinyFile(t.TempDir(), c.args...)...)
			for _, want := range c.want {
				if code != exitUsage || !strings.Contains(stderr, want) {
					t.Errorf("exit code %d; standard error %q, want %q", code, stderr, want)
				}
			}
		})
	}
}

// bench file measures every available path and the raw device, at both ends of a transfer, and
// leaves no files.
func TestBenchFileMeasuresAllPaths(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	name := filepath.Join(out, "run.json")
	code, stdout, stderr := executeWhole(t, tinyFile(dir, "--device", "sim", "--out", name)...)
	if strings.Contains(stderr, "refuses O_DIRECT") {
		testkit.Skip(t, "direct-io", stderr)
	}
	if code != exitOK || !strings.Contains(stdout, "SIMULATED") || !strings.Contains(stdout, "Cold write, scattered") {
		t.Fatalf("exit code %d, standard error %q, output:\n%s", code, stderr, stdout)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("files left in the directory: %v, %v", left, err)
	}
	b, err := os.ReadFile(name)
	var r file.Report
	if err != nil || json.Unmarshal(b, &r) != nil || r.Kind != file.Kind || r.Machine.Command == "" {
		t.Fatalf("report %+v, %v", r, err)
	}
	if m := r.Setup.CuFile; m == nil || !m.GDS || !strings.Contains(stdout, "GPUDirect Storage: simulated") {
		t.Errorf("cuFile's mode is %+v; output:\n%s", m, stdout)
	}
	for i := range r.Reads {
		if c := &r.Reads[i]; c.Direct <= 0 || c.Pinned <= 0 || c.Raw <= 0 {
			t.Errorf("comparison %+v", c)
		}
	}
	if len(r.Reads) != 2 || !strings.Contains(stdout, "Reads to the device's memory") {
		t.Errorf("%d comparisons of reads; output:\n%s", len(r.Reads), stdout)
	}
	seen := make(map[string]bool)
	for i := range r.Points {
		if p := &r.Points[i]; !p.Raw {
			seen[p.Name+" "+string(p.End)] = true
		}
	}
	for _, want := range []string{"posix host", "posix device", "cufile device", "auto host", "auto device"} {
		if !seen[want] {
			t.Errorf("%s is not measured: %v", want, seen)
		}
	}
}

// --direct decides which paths bench file measures.
func TestBenchFileKeepsToDirect(t *testing.T) {
	for direct, want := range map[string]string{
		"auto":    "auto device,auto host,cufile device,posix device,posix host",
		"require": "auto device,auto host,cufile device",
		"off":     "auto device,auto host,posix device,posix host",
	} {
		code, stdout, stderr := executeWhole(t, tinyFile(t.TempDir(), "--device", "sim", "--direct", direct, "--transfers", "2", "--cufile-queues", "1",
			"--work", "read", "--from", "page-cache", "--json")...)
		var r file.Report
		if code != exitOK || json.Unmarshal([]byte(stdout), &r) != nil {
			t.Fatalf("%s: exit code %d, standard error %q, output:\n%s", direct, code, stderr, stdout)
		}
		var seen []string
		for i := range r.Points {
			p := &r.Points[i]
			if p.Raw || p.Name == stream.PathURing.String() { // not every machine has io_uring
				continue
			}
			if direct == "off" && r.Setup.CuFile != nil {
				t.Errorf("with --direct off, cuFile's mode is %s", r.Setup.CuFile)
			}
			if direct == "off" && p.By == stream.PathCuFile.String() {
				t.Errorf("--direct off: %s used cuFile", p.Name)
			}
			seen = append(seen, p.Name+" "+string(p.End))
		}
		slices.Sort(seen)
		if got := strings.Join(slices.Compact(seen), ","); got != want {
			t.Errorf("%s: measured %s, want %s", direct, got, want)
		}
	}
}
