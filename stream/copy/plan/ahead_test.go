package plan_test

import (
	"testing"
	"time"

	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// TestBacklogHidesTheStart checks that the start-up time of a launch does not count if other
// batches are running. The kernel path then pays for fewer copies.
func TestBacklogHidesTheStart(t *testing.T) {
	pl := newPlanner(t, plan.Default(), plan.Options{})
	can := plan.PathSet(stream.PathCopyEngine, stream.PathKernel)
	crossing := func(pl *plan.Planner, ahead time.Duration) int {
		for n := 1; n < 100; n++ {
			r := plan.Request{Pieces: n, Runs: n, Bytes: int64(n) << 12, Ahead: ahead}
			if pl.Choose(r, can).Path == stream.PathKernel {
				return n
			}
		}
		return 100
	}
	idle, busy := crossing(pl, 0), crossing(pl, time.Second)
	if idle <= busy {
		t.Errorf("the kernel is taken from %d copies on idle, from %d behind a backlog: want fewer there", idle, busy)
	}
	latency, err := pl.With(plan.Policy{Goal: plan.Latency})
	if err != nil {
		t.Fatal(err)
	}
	if n := crossing(latency, time.Second); n != idle {
		t.Errorf("for latency the kernel is used from %d copies on, want %d whatever is queued", n, idle)
	}
}

// TestBatchesThatStartAlone checks a path that waits until earlier batches have ended. Its
// prediction is that of an idle device.
func TestBatchesThatStartAlone(t *testing.T) {
	pl := newPlanner(t, plan.Default(), plan.Options{})
	r := plan.Request{Pieces: 64, Runs: 64, Bytes: 64 << 12}
	idle, _ := pl.Predict(r, stream.PathKernel, 16)
	r.Ahead = time.Second
	hidden, _ := pl.Predict(r, stream.PathKernel, 16)
	r.Alone = plan.PathSet(stream.PathKernel)
	alone, ok := pl.Predict(r, stream.PathKernel, 16)
	if !ok || hidden >= idle || alone != idle {
		t.Errorf("%v on an idle stream, %v behind others, %v behind others and alone", idle, hidden, alone)
	}
	if c := pl.Choose(r, r.Alone); c.Predicted != alone {
		t.Errorf("chosen with %v, want %v", c.Predicted, alone)
	}
}
