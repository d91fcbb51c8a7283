package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/testkit"
)

// measures is a script that replaces kvlane.
const measures = `echo "kvlane $*"
while [ $# -gt 0 ]; do case $1 in --out) echo {} >"$2";; esac; shift; done
exit 0`

func TestHardwareRDMAScript(t *testing.T) {
	testkit.SkipRace(t, "a shell runs the commands")
	whole := []string{"rdma-copy.json", "rdma-copy.txt", "rdma-replay.txt", "rdma-suite.txt", "rdma-summary.txt"}
	noCopy := []string{"rdma-copy.txt", "rdma-replay.txt", "rdma-suite.txt", "rdma-summary.txt"}
	for name, c := range map[string]struct {
		suite, kvlane string
		args          []string
		code          int
		summary       []string
		files         []string
	}{
		"all is well":         {passes, measures, nil, 0, []string{"nothing failed"}, whole},
		"simulated":           {passes, measures, []string{"--device", "sim"}, 0, []string{"nothing failed"}, whole},
		"the suite fails":     {fails, measures, nil, 1, []string{"suite of the stream", "FAILED: exit code 1", "SOMETHING FAILED"}, whole},
		"no test is run":      {none, measures, nil, 1, []string{"0 passed", "SOMETHING FAILED"}, whole},
		"a replay fails":      {passes, `case "$*" in *--layerwise*) exit 1;; esac` + "\n" + measures, nil, 1, []string{"layerwise", "SOMETHING FAILED"}, whole},
		"the benchmark fails": {passes, `case "$*" in *copy*) echo it broke; exit 1;; esac` + "\n" + measures, nil, 1, []string{"it broke", "SOMETHING FAILED"}, noCopy},
		"unknown device":      {passes, measures, []string{"--device", "abacus"}, 2, nil, nil},
		"no suite":            {"", measures, nil, 2, []string{"hardware-kit"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			kit, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
			printed, code := runScript(t, kit, "hardware-rdma", "run-rdma", map[string]string{
				"stream-nic.test": c.suite, "kvlane": c.kvlane,
			}, append(c.args, out)...)
			if code != c.code {
				t.Errorf("exit code %d, want %d:\n%s", code, c.code, printed)
			}
			for _, want := range c.summary {
				if !strings.Contains(printed, want) {
					t.Errorf("%q is not in the output:\n%s", want, printed)
				}
			}
			files := filesIn(t, out)
			if !slices.Equal(files, c.files) {
				t.Errorf("files %v, want %v", files, c.files)
			}
		})
	}
}
