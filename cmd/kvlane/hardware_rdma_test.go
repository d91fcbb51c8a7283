package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// measures stands in for kvlane: its benchmark reaches the target at one of two points, by all but one NIC and pages, and with
// the fewest cores by one NIC and lists.
const measures = `echo "kvlane $*"
row=sim,true,nic-soft,extents,nic-soft,4096,1,1
speed=46.100 busy=3.5
case "$*" in
*pages-1.json*) speed=44.600 busy=1.5;;
*lists-1.json*) speed=45.100 busy=2.5;;
esac
case "$*" in *--csv*) echo "$row,h2d,host scattered,4096,6,$speed,1,$busy"; echo "$row,d2h,host scattered,4096,6,44.900,1,$busy"; exit 0;; esac
while [ $# -gt 0 ]; do case $1 in --out) echo {} >"$2";; esac; shift; done
exit 0`

func TestHardwareRDMAScript(t *testing.T) {
	whole := []string{
		"rdma-bench.txt", "rdma-copy-lists-1.json", "rdma-copy-lists-2.json", "rdma-copy-pages-1.json", "rdma-copy-pages-2.json",
		"rdma-copy.txt", "rdma-replay.txt", "rdma-stream.txt", "rdma-suite.txt", "rdma-summary.txt",
	}
	noCopy := []string{"rdma-bench.txt", "rdma-copy.txt", "rdma-replay.txt", "rdma-stream.txt", "rdma-suite.txt", "rdma-summary.txt"}
	for name, c := range map[string]struct {
		suite, kvlane string
		args          []string
		code          int
		summary       []string
		files         []string
	}{
		"all is well": {passes, measures, nil, 0, []string{
			"nothing failed", "reached 4096 bytes, h2d, host scattered: 45.1 GB/s by 1 NIC and lists, 2.5 of ",
			" busy; 44.6 (1.5) by 1 NIC and pages; 46.1 (3.5) by 2 NICs and pages; 46.1 (3.5) by 2 NICs and lists\n",
			"MISSED  4096 bytes, d2h, host scattered: 44.9 GB/s by 1 NIC and pages", "reached 45 GB/s at 1 of 2 points",
		}, whole},
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
					t.Errorf("%q is not said:\n%s", want, printed)
				}
			}
			files := filesIn(t, out)
			if !slices.Equal(files, c.files) {
				t.Errorf("files %v, want %v", files, c.files)
			}
		})
	}
}
