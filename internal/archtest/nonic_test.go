package archtest

import (
	"os/exec"
	"strings"
	"testing"
)

// TestBuildWithoutVerbs checks that a build with the tag nonic does not contain the libibverbs
// binding. `make nonic` checks that it builds.
func TestBuildWithoutVerbs(t *testing.T) {
	list := func(args ...string) map[string]bool {
		t.Helper()
		cmd := exec.Command("go", append(append([]string{"list", "-deps"}, args...), "./cmd/kvlane")...)
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
		}
		deps := make(map[string]bool)
		for line := range strings.Lines(string(out)) {
			deps[strings.TrimSpace(line)] = true
		}
		return deps
	}
	with, without := list(), list("-tags", "nonic")
	for _, rel := range []string{"rdma/ibv", "internal/sys/ibverbs"} {
		path := module + "/" + rel
		if !with[path] {
			t.Errorf("the usual build does not have %s: the test looks for the wrong packages", rel)
		}
		if without[path] {
			t.Errorf("a build with the tag nonic has %s", rel)
		}
	}
}
