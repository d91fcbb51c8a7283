package testkit

import (
	"testing"

	"github.com/kvlane/kvlane/internal/fault"
)

// sweepLimit is the maximum number of operations in a sweep.
const sweepLimit = 10_000

// Sweep runs body with operation N named op failing, for N = 0, 1, 2, ..., until a run has fewer
// operations and succeeds. body returns all errors that the tested code returned, joined. The test
// fails if they do not include an injected fault, or if a run without a fault fails. cause may be
// nil. With -short, N increases in larger steps.
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
