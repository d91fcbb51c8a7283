package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/bench/file"
	"github.com/kvlane/kvlane/internal/testkit"
)

func tinyFile(dir string, more ...string) []string {
	return append([]string{"bench", "file", "--dir", dir, "--bytes", "64KiB", "--sizes", "4KiB", "--budget", "1ms", "--order", "scattered"}, more...)
}

func TestBenchFileFlagsAreChecked(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"names": {
			[]string{"--dir", "", "--device", "tape", "--sizes", "1,x", "--work", "idle", "--order", "up", "--from", "tape", "--json", "--csv"},
			[]string{"no directory", `--device "tape"`, "--sizes", "1 bytes", `"idle"`, `"up"`, "exclude each other"},
		},
		"nothing is left": {[]string{"--work", "write", "--from", "page-cache"}, []string{"nothing is left"}},
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

// Every path that there is stands beside the raw device, at both ends, and nothing stays behind.
func TestBenchFileMeasuresAllPaths(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	name, charts := filepath.Join(out, "run.json"), filepath.Join(out, "charts")
	code, stdout, stderr := execute(t, tinyFile(dir, "--device", "sim", "--out", name, "--charts", charts)...)
	if strings.Contains(stderr, "refuses O_DIRECT") {
		testkit.Skip(t, "direct-io", stderr)
	}
	if code != exitOK || !strings.Contains(stdout, "SIMULATED") || !strings.Contains(stdout, "Cold write, scattered") || !strings.Contains(stderr, "6 charts") {
		t.Fatalf("exit code %d, standard error %q, output:\n%s", code, stderr, stdout)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	b, err := os.ReadFile(name)
	var r file.Report
	if err != nil || json.Unmarshal(b, &r) != nil || r.Kind != file.Kind || r.Machine.Command == "" {
		t.Fatalf("report %+v, %v", r, err)
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
	if code, stdout, _ := execute(t, tinyFile(dir, "--work", "read", "--from", "page-cache", "--csv")...); code != exitOK || !strings.HasPrefix(stdout, "device,simulated,file_system") {
		t.Errorf("exit code %d, output:\n%s", code, stdout)
	}
}
