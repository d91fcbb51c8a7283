package streamtest

import "testing"

// Run runs the suite. open is called once for each test, with that test.
func Run(t *testing.T, open func(t *testing.T) Env) {
	t.Helper()
	tests := []struct {
		name   string
		faults bool // needs Env.Plan
		run    func(t *testing.T, env Env)
	}{
		{"every size and alignment", false, testSizes},
		{"scattered extents", false, testScatter},
		{"neighbours", false, testNeighbours},
		{"paged", false, testPaged},
		{"neighbouring pages", false, testNeighbouringPages},
		{"list and paged together", false, testMixed},
		{"empty batches", false, testEmpty},
		{"huge list", false, testHugeList},
		{"huge paged", false, testHugePaged},
		{"sums", false, testSums},
		{"what has landed", false, testLanded},
		{"what has landed of a cancelled batch", false, testLandedCancel},
		{"completion", false, testCompletion},
		{"order", false, testOrder},
		{"concurrent submits", false, testConcurrent},
		{"random programs", false, testRandom},
		{"bad batches", false, testBadBatches},
		{"full stream", false, testFull},
		{"context ended before", false, testEndedContext},
		{"wait gives up", false, testWaitGivesUp},
		{"dependency", false, testDependency},
		{"failed dependency", false, testFailedDependency},
		{"dependency chain across streams", false, testChain},
		{"cancel before start", false, testCancelUnstarted},
		{"cancel after the end", false, testCancelResolved},
		{"cancel at any time", false, testCancelAnyTime},
		{"close", false, testClose},
		{"close with batches waiting", false, testCloseWaiting},
		{"record", false, testRecord},
		{"record gives up", false, testRecordGivesUp},
		{"wait for event", false, testWaitEvent},
		{"failure is sticky", true, testSticky},
		{"what has landed of a failed batch", true, testLandedFails},
		{"abort then page reuse", true, testAbortReuse},
		{"close gives up", true, testCloseGivesUp},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			env := open(t)
			if tt.faults && env.Plan == nil {
				// Not a skip of what this machine lacks: no implementation over hardware can run it.
				t.Log("the environment has no fault plan")
				return
			}
			tt.run(t, env)
		})
	}
}
