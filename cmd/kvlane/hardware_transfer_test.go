package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/testkit"
)

// transfers is a script that replaces kvlane: a target that runs until it is interrupted, and
// measurements.
const transfers = `case "$*" in
*"--mode target"*) trap 'exit 0' TERM; echo "segment 127.0.0.1:7/memory: 1 bytes; interrupt to end"; while :; do sleep 0.05; done;;
esac
echo "  16 MiB  $*"
while [ $# -gt 0 ]; do case $1 in --out) echo {} >"$2";; esac; shift; done
exit 0`

func TestHardwareTransferScript(t *testing.T) {
	testkit.SkipRace(t, "a shell runs the commands")
	for name, c := range map[string]struct {
		kvlane  string
		args    []string
		code    int
		summary []string
		files   int
	}{
		"all is well":          {transfers, nil, 0, []string{"nothing failed", "read 4KiB", "checked write", "--segment 127.0.0.1:7/memory"}, 14},
		"one GPU":              {transfers, []string{"--gpus", "1", "--device", "sim", "--seconds", "1"}, 0, []string{"nothing failed"}, 12},
		"a measurement fails":  {`case "$*" in *"operation read"*) echo it broke; exit 1;; esac` + "\n" + transfers, nil, 1, []string{"it broke", "SOMETHING FAILED"}, 10},
		"there is no target":   {`case "$*" in *"mode target"*) echo no memory; exit 1;; esac` + "\n" + transfers, nil, 1, []string{"no memory", "SOMETHING FAILED"}, 5},
		"an unknown device":    {transfers, []string{"--device", "abacus"}, 2, nil, 0},
		"three GPUs":           {transfers, []string{"--gpus", "3"}, 2, nil, 0},
		"no number of seconds": {transfers, []string{"--seconds", "x"}, 2, nil, 0},
		"nothing to run":       {"", nil, 2, []string{"hardware-kit"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kit, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
			printed, code := runScript(t, kit, "hardware-transfer", "run-transfer", map[string]string{"kvlane": c.kvlane}, append(c.args, out)...)
			if code != c.code {
				t.Errorf("exit code %d, want %d:\n%s", code, c.code, printed)
			}
			for _, want := range c.summary {
				if !strings.Contains(printed, want) {
					t.Errorf("%q is not in the output:\n%s", want, printed)
				}
			}
			if files := filesIn(t, out); len(files) != c.files || len(files) > 0 && !slices.Contains(files, "transfer-summary.txt") {
				t.Errorf("%d files %v, want %d", len(files), files, c.files)
			}
		})
	}
}
