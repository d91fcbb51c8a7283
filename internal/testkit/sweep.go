package testkit

import (
	"testing"

	"github.com/kvlane/kvlane/internal/fault"
)

// sweepLimit stops a sweep whose operations never end.
const sweepLimit = 10_000

// Sweep runs body with the Nth operation named op failing, for N = 0, 1, 2, ... until a run has
// fewer operations and succeeds. body returns the join of all errors that its code under test
// reported. The test fails if an injected fault is not among them, or if a run without a fault
// fails. cause may be nil. With -short the steps of N grow with N.
func Sweep(t *testing.T, op string, cause error, body func(t *testing.T, plan *fault.Plan) error) {
	t.Helper()
	for n := 0; n < sweepLimit; n += step(n) {
		plan := fault.New(uint64(n), fault.Nth(op, n).Fail(cause))
		err := body(t, plan)
		if lost := plan.Unreported(err); len(lost) > 0 {
			t.Fatalf("%v went unreported; reported: %v", lost[0], err)
		}
		if plan.Injected() > 0 {
			continue
		}
		if err != nil {
			t.Fatalf("without a fault: %v", err)
		}
		if n == 0 {
			t.Fatalf("no operation %q happened: the sweep tested nothing", op)
		}
		return
	}
	t.Fatalf("still failing at %s %d", op, sweepLimit)
}

func step(n int) int {
	if testing.Short() {
		return 1 + n/4
	}
	return 1
}
