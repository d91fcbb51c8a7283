package streamtest

import "testing"

// sort selects the streams to which a test applies.
type sort uint8

const (
	both sort = iota
	ordered
	unordered
)

// Run runs the suite. It calls open once for each test, with that test's T.
func Run(t *testing.T, open func(t *testing.T) Env) {
	t.Helper()
	tests := []struct {
		name   string
		faults bool // needs Env.Plan
		of     sort
		run    func(t *testing.T, env Env)
	}{
		{"every size and alignment", false, both, testSizes},
		{"scattered extents", false, both, testScatter},
		{"neighbours", false, both, testNeighbours},
		{"paged", false, both, testPaged},
		{"neighbouring pages", false, both, testNeighbouringPages},
		{"list and paged together", false, both, testMixed},
		{"empty batches", false, ordered, testEmpty},
		{"huge list", false, both, testHugeList},
		{"huge paged", false, both, testHugePaged},
		{"sums", false, both, testSums},
		{"completed groups", false, both, testCompleted},
		{"completed groups of a cancelled batch", false, both, testCompletedCancel},
		{"completion", false, both, testCompletion},
		{"order", false, ordered, testOrder},
		{"concurrent submits", false, both, testConcurrent},
		{"random programs", false, both, testRandom},
		{"bad batches", false, both, testBadBatches},
		{"full stream", false, both, testFull},
		{"context ended before", false, both, testEndedContext},
		{"wait gives up", false, both, testWaitGivesUp},
		{"dependency", false, both, testDependency},
		{"failed dependency", false, both, testFailedDependency},
		{"dependency chain across streams", false, both, testChain},
		{"cancel before start", false, both, testCancelUnstarted},
		{"cancel after the end", false, both, testCancelResolved},
		{"cancel at any time", false, both, testCancelAnyTime},
		{"close", false, both, testClose},
		{"close with batches waiting", false, both, testCloseWaiting},
		{"record", false, ordered, testRecord},
		{"record gives up", false, ordered, testRecordGivesUp},
		{"wait for event", false, ordered, testWaitEvent},
		{"failure is sticky", true, ordered, testSticky},
		{"completed groups of a failed batch", true, ordered, testCompletedFails},
		{"abort then page reuse", true, ordered, testAbortReuse},
		{"close gives up", true, both, testCloseGivesUp},
		{"completion out of order", false, unordered, testOutOfOrder},
		{"both ways in a batch", false, unordered, testBothWays},
		{"within a memory", false, unordered, testWithin},
		{"a failure is its batch's alone", true, unordered, testAlone},
		{"the Nth work fails", true, unordered, testNthFails},
		{"cancel while work is stalled", true, unordered, testUnorderedAbort},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			env := open(t)
			if tt.of != both && (tt.of == unordered) != env.Unordered {
				return
			}
			if tt.faults && env.Plan == nil {
				// This is not a skip because of this machine: no stream on real hardware can run
				// the test.
				t.Log("the environment has no fault plan")
				return
			}
			tt.run(t, env)
		})
	}
}
