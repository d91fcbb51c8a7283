package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/bench/request"
	"github.com/kvlane/kvlane/internal/testkit"
)

// tinyStore returns the arguments of a store benchmark that takes a moment.
func tinyStore(more ...string) []string {
	return append([]string{
		"bench", "store", "--device", "sim", "--blocks", "1,2", "--requests", "1", "--bytes", "1MiB", "--large", "64KiB", "--budget", "1m",
	}, more...)
}

// All wrong flags are reported together, each with the remedy.
func TestBenchStoreFlagsAreChecked(t *testing.T) {
	testkit.SkipRace(t, "one goroutine reads the command line")
	for name, c := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"names": {
			[]string{"--geometry", "70b", "--work", "idle", "--hits", "tape", "--noise", "loud", "--compare", "x"},
			exitUsage,
			[]string{`unknown geometry "70b": must be one of 70b-tp8`, `"idle"`, `"tape"`, `"loud"`},
		},
		"a path": {[]string{"--path", "teleport"}, exitUsage, []string{`"teleport"`}},
		"files without a place": {
			[]string{"--hits", "disk"}, exitUsage, []string{"no directory is given"},
		},
		"no blocks":     {[]string{"--blocks", "0"}, exitUsage, []string{"kvlane: 0 blocks of a request: must be 1 to 1048576: invalid argument\nSee "}},
		"too few bytes": {[]string{"--bytes", "1KiB"}, exitUsage, []string{"allow more bytes"}},
		"earlier run":   {[]string{"--compare", "/nonexistent"}, exitFailure, []string{"--compare"}},
		"device":        {[]string{"--device", "auto"}, exitUsage, []string{"must be cuda, sim or host"}},
		"small product": {[]string{"--beside-matmul", "--product-rows", "2048"}, exitUsage, []string{"--product-rows 2048: must be a multiple of 64, from 4096 to 8192"}},
		"product":       {[]string{"--pairs", "2", "--beside-matmul", "--beside-blocks", "1", "--blocks", "1", "--work", "load", "--forms", "whole"}, exitFailure, []string{"does not support it"}},
		"still":         {[]string{"--device", "cuda", "--still"}, exitUsage, []string{"--still has no effect without --device sim"}},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := execute(t, tinyStore(c.args...)...)
			for _, want := range c.want {
				if code != c.code || !strings.Contains(stderr, want) {
					t.Errorf("exit code %d, want %d; standard error %q, want %q", code, c.code, stderr, want)
				}
			}
		})
	}
}

func TestBenchStoreWritesAndCompares(t *testing.T) {
	testkit.SkipRace(t, "the benchmark's own package runs it")
	dir := t.TempDir()
	file := filepath.Join(dir, "run.json")
	code, stdout, stderr := executeWhole(t, tinyStore("--out", file, "--policy", "latency")...)
	if code != exitOK || !strings.Contains(stdout, "SIMULATED: only ratios") || !strings.Contains(stdout, "--policy latency; loads and dumps under the latency policy") {
		t.Fatalf("exit code %d, standard error %q, output:\n%s", code, stderr, stdout)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r request.Report
	if err := json.Unmarshal(b, &r); err != nil || len(r.Points) != 2*3*2 || r.Version == "" || r.Machine.UUID == "" || r.Machine.Command == "" {
		t.Fatalf("report %+v, %v", r, err)
	}
	for i := range r.Points {
		p := &r.Points[i]
		p.GBps, p.LowGBps, p.HighGBps = 1e4*p.GBps, 1e4*p.GBps, 1e4*p.GBps
	}
	if err := writeFile(file, &r); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr = executeWhole(t, tinyStore("--json", "--work", "load", "--compare", file, "--fail-above", "10%")...)
	if code != exitFailure || !strings.Contains(stderr, "4 points are more than 10% slower") || json.Unmarshal([]byte(stdout), &r) != nil {
		t.Errorf("exit code %d, standard error %q", code, stderr)
	}
}
