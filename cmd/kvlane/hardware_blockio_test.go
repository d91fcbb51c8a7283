package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/testkit"
)

// blockServers is a script that replaces kvlane: servers that run until they are interrupted, and
// measurements.
const blockServers = `case "$*" in
*"blockd"*) trap 'echo "7 requests"; exit 0' TERM; echo "block server 127.0.0.1:7; interrupt to end"; while :; do sleep 0.05; done;;
esac
echo "$*"
while [ $# -gt 0 ]; do case $1 in --out) echo {} >"$2";; esac; shift; done
exit 0`

func TestHardwareBlockioScript(t *testing.T) {
	testkit.SkipRace(t, "a shell runs the commands")
	for name, c := range map[string]struct {
		suite, kvlane string
		args          []string
		code          int
		summary       []string
		files         int
	}{
		"all is well":        {passes, blockServers, nil, 0, []string{"nothing failed", "2 passed, 0 failed", "    7 requests"}, 7},
		"simulated":          {passes, blockServers, []string{"--device", "sim", "--requests", "3"}, 0, []string{"nothing failed"}, 7},
		"a test fails":       {fails, blockServers, nil, 1, []string{"0 passed, 2 failed", "SOMETHING FAILED"}, 7},
		"a replay fails":     {passes, `case "$*" in *layerwise*) echo it broke; exit 1;; esac` + "\n" + blockServers, nil, 1, []string{"it broke", "SOMETHING FAILED"}, 7},
		"there is no server": {passes, `case "$*" in *blockd*) echo no memory; exit 1;; esac` + "\n" + blockServers, nil, 1, []string{"no memory", "SOMETHING FAILED"}, 3},
		"an unknown device":  {passes, blockServers, []string{"--device", "abacus"}, 2, nil, 0},
		"no number":          {passes, blockServers, []string{"--requests", "x"}, 2, nil, 0},
		"nothing to run":     {"", blockServers, nil, 2, []string{"hardware-kit"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kit, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
			printed, code := runScript(t, kit, "hardware-blockio", "run-blockio", map[string]string{
				"kvlane": c.kvlane, "kvlane.test": c.suite, "gateway.test": c.suite,
			}, append(c.args, out)...)
			if code != c.code {
				t.Errorf("exit code %d, want %d:\n%s", code, c.code, printed)
			}
			for _, want := range c.summary {
				if !strings.Contains(printed, want) {
					t.Errorf("%q is not in the output:\n%s", want, printed)
				}
			}
			if files := filesIn(t, out); len(files) != c.files || len(files) > 0 && !slices.Contains(files, "blockio-summary.txt") {
				t.Errorf("%d files %v, want %d", len(files), files, c.files)
			}
		})
	}
}
