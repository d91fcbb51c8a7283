package plan_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// blocks returns a request for pages of 4 KiB, of which row pages at a time are adjacent in host
// memory.
func blocks(dir plan.Direction, bytes int64, row int) plan.Request {
	n := int(bytes >> 12)
	return plan.Request{Dir: dir, Pieces: n, Runs: n, HostRuns: n / row, Bytes: bytes}
}

// rows returns r with its host runs in rows: n runs at equal distances form one row.
func rows(r plan.Request, n int) plan.Request {
	r.HostRows = r.HostRuns / n
	return r
}

// TestInterferenceChoices checks the paths of a store's batches under each policy on an idle H100.
// Adjacent slots of 256 KiB are staged. Layers of slots, with runs of 8 KiB, use kernels with few
// thread blocks unless the slots are adjacent. Batches of some tens of microseconds use the fastest
// path.
func TestInterferenceChoices(t *testing.T) {
	type way struct {
		path stream.Path
		ctas int
	}
	engine, staged := way{stream.PathCopyEngine, 0}, way{stream.PathStaged, 32}
	kernel := func(ctas int) way { return way{stream.PathKernel, ctas} }
	const whole, part, row = 256 << 20, 8 << 20, 64
	for _, c := range []struct {
		what                             string
		r                                plan.Request
		throughput, balanced, background way
	}{
		{"in, whole", blocks(plan.H2D, whole, row), kernel(4), staged, staged},
		{"in, whole, a part", blocks(plan.H2D, part, row), staged, staged, staged},
		{"in, contiguous", blocks(plan.H2D, whole, whole>>12), staged, staged, staged},
		{"in, by layers", blocks(plan.H2D, whole, 2), kernel(4), kernel(4), kernel(4)},
		{"in, by layers, side by side", rows(blocks(plan.H2D, whole, 2), 64), kernel(4), staged, staged},
		{"in, by layers, side by side by few", rows(blocks(plan.H2D, whole, 2), 2), kernel(4), kernel(4), kernel(4)},
		{"in, a layer", blocks(plan.H2D, part, 2), kernel(4), kernel(4), kernel(4)},
		{"in, scattered", blocks(plan.H2D, whole, 1), kernel(4), kernel(4), kernel(4)},
		{"in, large pieces", scattered(plan.H2D, 128, 2<<20), engine, engine, engine},
		{"in, one block", blocks(plan.H2D, 256<<10, row), kernel(4), kernel(4), kernel(4)},
		{"in, one page", blocks(plan.H2D, 4<<10, 1), engine, engine, engine},
		{"out, whole", blocks(plan.D2H, whole, row), kernel(4), staged, staged},
		{"out, whole, a part", blocks(plan.D2H, part, row), kernel(4), staged, staged},
		{"out, contiguous", blocks(plan.D2H, whole, whole>>12), staged, staged, staged},
		{"out, by layers", blocks(plan.D2H, whole, 2), kernel(4), kernel(1), kernel(1)},
		{"out, a layer", blocks(plan.D2H, part, 2), kernel(4), kernel(1), kernel(1)},
		{"out, scattered", blocks(plan.D2H, whole, 1), kernel(4), kernel(1), kernel(1)},
		{"out, large pieces", scattered(plan.D2H, 128, 2<<20), engine, engine, engine},
		{"out, one block", blocks(plan.D2H, 256<<10, row), kernel(2), kernel(2), kernel(2)},
		{"out, one page", blocks(plan.D2H, 4<<10, 1), engine, engine, engine},
	} {
		for goal, want := range map[plan.Goal]way{plan.Throughput: c.throughput, plan.Balanced: c.balanced, plan.Background: c.background} {
			can := plan.PathSet(stream.PathCopyEngine, stream.PathKernel, stream.PathStaged)
			got := newPlanner(t, plan.Default(), plan.Options{Policy: plan.Policy{Goal: goal}}).Choose(c.r, can)
			if (way{got.Path, got.CTAs}) != want {
				t.Errorf("%s, %s: %+v, want %v", c.what, goal, got, want)
			}
			if goal.Weighs() != (got.ChunkBytes > 0) || (goal == plan.Background) != (got.Pace > 0) {
				t.Errorf("%s, %s: chunks of %d, pace %v", c.what, goal, got.ChunkBytes, got.Pace)
			}
			if goal != plan.Balanced {
				continue
			}
			c.r.Awaited = true // so that interference has no weight
			got = newPlanner(t, plan.Default(), plan.Options{Policy: plan.Policy{Goal: goal}}).Choose(c.r, can)
			if (way{got.Path, got.CTAs}) != c.throughput || got.ChunkBytes != 0 {
				t.Errorf("%s, awaited: %+v, want %v and chunks as the stream likes", c.what, got, c.throughput)
			}
			c.r.Awaited = false
		}
	}
}

// TestInterferenceAddsUp checks that a batch that causes no interference alone is treated
// differently if it is one of many.
func TestInterferenceAddsUp(t *testing.T) {
	pl := newPlanner(t, plan.Default(), plan.Options{Policy: plan.Policy{Goal: plan.Balanced}})
	can := plan.PathSet(stream.PathCopyEngine, stream.PathKernel)
	r := scattered(plan.D2H, 100, 4<<10)
	if c := pl.Choose(r, can); c.CTAs < 2 || c.Reason == plan.ReasonInterference {
		t.Errorf("alone: %+v", c)
	}
	r.Ahead = time.Millisecond
	if c := pl.Choose(r, can); c.CTAs != 1 || c.Reason != plan.ReasonInterference {
		t.Errorf("behind others: %+v", c)
	}
}

// TestInterferenceIsNotLearnedAway simulates a device on which all kernels wait for
// multiprocessors. No policy may use more thread blocks than on an idle device. Under the balanced
// policy learned times still count: staged copies that make almost no progress are replaced by a
// kernel.
func TestInterferenceIsNotLearnedAway(t *testing.T) {
	can := plan.PathSet(stream.PathCopyEngine, stream.PathKernel, stream.PathStaged)
	for _, goal := range []plan.Goal{plan.Balanced, plan.Background} {
		for _, dir := range []plan.Direction{plan.H2D, plan.D2H} {
			for _, row := range []int{1, 2, 64} {
				clock := clockwork.NewFakeClock()
				pl := newPlanner(t, plan.Default(), plan.Options{Clock: clock, Policy: plan.Policy{Goal: goal}})
				r := blocks(dir, 16<<20, row)
				for range 200 {
					c := pl.Choose(r, can)
					if most := map[plan.Direction]int{plan.H2D: 4, plan.D2H: 1}[dir]; c.Path == stream.PathKernel && c.CTAs > most {
						t.Fatalf("%s %s, %d in a row: %+v", goal, dir, row, c)
					}
					took, _ := newPlanner(t, plan.Default(), plan.Options{}).Predict(r, c.Path, c.CTAs)
					if c.CTAs > 0 {
						took += 1400 * time.Microsecond
					}
					clock.Advance(took)
					pl.Observe(c, r, took)
				}
			}
		}
	}
	pl := newPlanner(t, plan.Default(), plan.Options{Policy: plan.Policy{Goal: plan.Balanced}})
	r := blocks(plan.H2D, 16<<20, 64)
	paths := map[stream.Path]int{}
	for range 100 {
		c := pl.Choose(r, can)
		paths[c.Path]++
		took, _ := newPlanner(t, plan.Default(), plan.Options{}).Predict(r, c.Path, c.CTAs)
		if c.Path == stream.PathStaged {
			took *= 4
		}
		pl.Observe(c, r, took)
	}
	if paths[stream.PathKernel] < 80 {
		t.Errorf("batches by path: %v", paths)
	}
}

// TestInterferenceAndOppositeTraffic checks that concurrent loads and dumps leave each other a
// share of the link under the balanced policy.
func TestInterferenceAndOppositeTraffic(t *testing.T) {
	can := plan.PathSet(stream.PathCopyEngine, stream.PathKernel, stream.PathStaged)
	for row, want := range map[int]string{64: "staged staged", 2: "kernel/4 kernel/1"} {
		loads := newPlanner(t, plan.Default(), plan.Options{Policy: plan.Policy{Goal: plan.Balanced}})
		dumps, err := loads.With(plan.Policy{Goal: plan.Background})
		if err != nil {
			t.Fatal(err)
		}
		loads.Choose(blocks(plan.H2D, 256<<20, row), can)
		out := dumps.Choose(blocks(plan.D2H, 256<<20, row), can)
		in := loads.Choose(blocks(plan.H2D, 256<<20, row), can)
		name := func(c plan.Choice) string {
			if c.Path == stream.PathKernel {
				return fmt.Sprintf("%s/%d", c.Path, c.CTAs)
			}
			return c.Path.String()
		}
		if got := name(in) + " " + name(out); got != want || in.Reason != plan.ReasonOpposed {
			t.Errorf("%d in a row: %s (%s), want %s", row, got, in.Reason, want)
		}
	}
}
