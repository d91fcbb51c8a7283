package plan_test

import (
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// TestOppositeTrafficCounts checks that a path that is slow with traffic in both directions is not
// used while the opposite direction is busy.
func TestOppositeTrafficCounts(t *testing.T) {
	pl := newPlanner(t, plan.Default(), plan.Options{})
	can := plan.PathSet(stream.PathKernel, stream.PathCopyEngine)
	out := plan.Request{Dir: plan.D2H, Pieces: 512, Runs: 512, Bytes: 512 << 18}
	if c := pl.Choose(out, can); c.Path != stream.PathKernel {
		t.Fatalf("%s: want the kernel without opposite traffic", c.Path)
	}
	in := out
	in.Dir = plan.H2D
	if c := pl.Choose(in, can); c.Path != stream.PathCopyEngine {
		t.Errorf("%s with opposite traffic: want the copy engine", c.Path)
	}
}

// TestOppositeTrafficIsLeftItsShare checks batches with opposite traffic. Each direction uses the
// fewest thread blocks that reach a sufficient share of the link, or none if rows of slots are
// staged. Small batches, for which a share has no effect, are chosen as usual.
func TestOppositeTrafficIsLeftItsShare(t *testing.T) {
	for _, c := range []struct {
		what      string
		in        plan.Request
		path      stream.Path
		ctas, out int
	}{
		{"scattered", scattered(plan.H2D, 65_536, 4096), stream.PathKernel, 4, 1},
		{"slots", plan.Request{Dir: plan.H2D, Pieces: 65_536, Runs: 65_536, HostRuns: 1024, Bytes: 65_536 << 12}, stream.PathStaged, 32, 32},
		{"large blocks", scattered(plan.H2D, 256, 1<<20), stream.PathCopyEngine, 0, 0},
		{"what engines reach enough of alone", plan.Request{Dir: plan.H2D, Pieces: 8192, Runs: 8192, HostRuns: 1, Bytes: 8192 << 16}, stream.PathStaged, 32, 32},
	} {
		pl := newPlanner(t, plan.Default(), plan.Options{})
		out, can := c.in, plan.PathSet(stream.PathCopyEngine, stream.PathKernel, stream.PathStaged)
		out.Dir = plan.D2H
		pl.Choose(out, can)
		in := pl.Choose(c.in, can)
		back := pl.Choose(out, can)
		if in.Path != c.path || back.Path != c.path || in.CTAs != c.ctas || back.CTAs != c.out || in.Reason != plan.ReasonOpposed || back.Reason != plan.ReasonOpposed {
			t.Errorf("%s: %+v, and back %+v", c.what, in, back)
		}
	}
	pl := newPlanner(t, plan.Default(), plan.Options{})
	pl.Choose(scattered(plan.D2H, 65_536, 4096), allPaths)
	if c := pl.Choose(scattered(plan.H2D, 4, 4096), allPaths); c.Reason == plan.ReasonOpposed {
		t.Errorf("four blocks: %+v", c)
	}
}

// TestOppositeTrafficIsExpectedAgain checks the first of two opposite batches: its choice depends
// on whether the previous batch met opposite traffic, if that was recently.
func TestOppositeTrafficIsExpectedAgain(t *testing.T) {
	clock := clockwork.NewFakeClock()
	pl := newPlanner(t, plan.Default(), plan.Options{Clock: clock})
	can := plan.PathSet(stream.PathKernel, stream.PathCopyEngine)
	out := plan.Request{Dir: plan.D2H, Pieces: 512, Runs: 512, Bytes: 512 << 18}
	in := out
	in.Dir = plan.H2D
	both := func(want stream.Path) {
		t.Helper()
		first, second := pl.Choose(out, can), pl.Choose(in, can)
		if first.Path != want {
			t.Fatalf("%s, want %s", first.Path, want)
		}
		took := first.Predicted + first.Predicted/10
		clock.Advance(took)
		pl.Observe(first, out, took)
		pl.Observe(second, in, took)
	}
	both(stream.PathKernel) // the planner cannot expect it yet
	both(stream.PathCopyEngine)
	both(stream.PathCopyEngine)
	clock.Advance(time.Second)
	both(stream.PathKernel)
}

// TestEnginesAreJudgedByWhatTheyTake checks that an engine that does not reach its measured share
// is no longer used, also in the background and with opposite traffic. More thread blocks could not
// have made it faster.
func TestEnginesAreJudgedByWhatTheyTake(t *testing.T) {
	can := plan.PathSet(stream.PathCopyEngine, stream.PathStaged)
	for _, goal := range []plan.Goal{plan.Background, plan.Throughput} {
		clock := clockwork.NewFakeClock()
		pl := newPlanner(t, plan.Default(), plan.Options{Clock: clock, Policy: plan.Policy{Goal: goal}})
		out := scattered(plan.D2H, 4096, 64<<10)
		in := out
		in.Dir = plan.H2D
		first, last := stream.PathNone, stream.PathNone
		for range 40 {
			back := pl.Choose(in, plan.PathSet(stream.PathStaged))
			c := pl.Choose(out, can)
			if last = c.Path; first == stream.PathNone {
				first = last
			}
			took := c.Predicted
			if c.Path == stream.PathCopyEngine {
				base, _ := newPlanner(t, plan.Default(), plan.Options{}).Predict(out, c.Path, 0)
				took = 2 * base
			}
			clock.Advance(took)
			pl.Observe(c, out, took)
			pl.Observe(back, in, took)
		}
		if first != stream.PathCopyEngine || last != stream.PathStaged {
			t.Errorf("%s: %s first, and %s in the end", goal, first, last)
		}
	}
}
