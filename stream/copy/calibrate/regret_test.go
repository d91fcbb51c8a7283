package calibrate_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// TestRegret calibrates a simulated H100 with noise, and then copies with the profile. It covers
// sizes from 256 B to 16 MiB and counts from 1 to 100,000, up to 4 GiB. After some batches at a
// point, the real time of the planner's choices must be within 10% of the best single path, of
// single copies and of batched copies. One point in four hundred may miss this, if a path was
// measured much too slow and not tried often enough since. The cost of trying other paths, and of
// the batches before that, must not exceed 1% of the total time.
func TestRegret(t *testing.T) { regret(t, noisy, 1.10, 1.10) }

// TestRegretAmongDisturbances does the same with batches that are delayed from time to time, also
// during the calibration.
func TestRegretAmongDisturbances(t *testing.T) { regret(t, disturbed, 1.10, 1.10) }

func regret(t *testing.T, takes func(*rand.Rand, work) float64, ofBest, ofCopies float64) {
	t.Helper()
	const (
		few      = 96 // batches at a point before it is judged
		judged   = 24
		most     = 4 << 30
		allInAll = 1.01
		unlucky  = 400 // one point in this many may be off by twice the limit
	)
	sizes := []int64{256, 512, 1 << 10, 2 << 10, 4 << 10, 6 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 576 << 10, 1 << 20, 4 << 20, 16 << 20}
	counts := []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 10_000, 32_768, 100_000}
	seeds := uint64(3)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 13))
		profile := calibrated(t, rng, takes)
		clock := clockwork.NewFakeClock()
		pl, err := plan.New(profile, plan.Options{Clock: clock})
		if err != nil {
			t.Fatal(err)
		}
		points, off, worst, worstCopies := 0, 0, 0.0, 0.0
		var cold, total, ideal float64
		for _, dir := range []plan.Direction{plan.H2D, plan.D2H} {
			for side := range plan.Scattered + 1 {
				for _, size := range sizes {
					for _, n := range counts {
						if int64(n)*size > most {
							continue
						}
						w := work{dir: dir, side: side, n: n, size: size}
						best, copies := w.best()
						var sum, n float64
						for i := range few + judged {
							took, probe := w.copy(pl, rng, clock, takes)
							total, ideal = total+took, ideal+best
							if i == 0 {
								cold = max(cold, took/best)
							}
							if i >= few && !probe {
								sum, n = sum+took, n+1
							}
						}
						mean := sum / n
						points++
						worst, worstCopies = max(worst, mean/best), max(worstCopies, mean/copies)
						if mean <= best*ofBest && mean <= copies*ofCopies {
							continue
						}
						off++
						if !(mean <= best*(2*ofBest-1) && mean <= copies*(2*ofCopies-1)) {
							t.Errorf("seed %d: %+v: %.1f%% over the best path, %.1f%% over copy engines", seed, w, 100*(mean/best-1), 100*(mean/copies-1))
						}
					}
				}
			}
		}
		if off > points/unlucky {
			t.Errorf("seed %d: %d of %d points are beyond the bounds", seed, off, points)
		}
		if total > ideal*allInAll {
			t.Errorf("seed %d: all batches together lasted %.1f%% longer than on the best paths", seed, 100*(total/ideal-1))
		}
		t.Logf("seed %d: %d points, worst %.1f%% over the best path, %.1f%% over copy engines; at the first batch %.1f%%; all in all %.2f%%",
			seed, points, 100*(worst-1), 100*(worstCopies-1), 100*(cold-1), 100*(total/ideal-1))
	}
}

// TestSlotsAreStaged checks pieces of 4 KiB between a device and slots of 256 KiB, as in a store.
// Under every policy they are staged, which is both the fastest path and the one with the least
// interference.
func TestSlotsAreStaged(t *testing.T) {
	pl, err := plan.New(calibrated(t, nil, func(_ *rand.Rand, w work) float64 { return h100(w) }), plan.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, goal := range []plan.Goal{plan.Throughput, plan.Balanced, plan.Background} {
		pl, err := pl.With(plan.Policy{Goal: goal})
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range []plan.Direction{plan.H2D, plan.D2H} {
			r := plan.Request{Dir: dir, Pieces: 65_536, Runs: 65_536, HostRuns: 1024, Bytes: 256 << 20}
			if c := pl.Choose(r, plan.PathSet(busPaths...)); c.Path != stream.PathStaged {
				t.Errorf("%s %s: %+v", goal, dir, c)
			}
		}
	}
}

// request returns w as a stream would describe it.
func (w work) request() plan.Request {
	r := plan.Request{Dir: w.dir, Pieces: w.n, Runs: w.n, HostRuns: w.n, Bytes: int64(w.n) * w.size}
	if w.side == plan.Contiguous {
		r.HostRuns = 1
	}
	return r
}

// can returns the possible paths of w.
func (w work) can() plan.Paths { return plan.PathSet(busPaths...) }

// best returns the time of w on the best path, and on the better kind of copy engine.
func (w work) best() (best, copies float64) {
	best, copies = math.Inf(1), math.Inf(1)
	can := w.can()
	for _, p := range busPaths {
		for _, ctas := range blocks[p] {
			w.path, w.ctas = p, ctas
			took := h100(w)
			if can.Has(p) {
				best = min(best, took)
			}
			if p == stream.PathCopyEngine {
				copies = min(copies, took)
			}
		}
	}
	return best, copies
}

// copy lets pl choose, reports a noisy duration to it, and returns the duration of the choice
// without noise.
func (w work) copy(pl *plan.Planner, rng *rand.Rand, clock *clockwork.FakeClock, takes func(*rand.Rand, work) float64) (took float64, probe bool) {
	r := w.request()
	c := pl.Choose(r, w.can())
	w.path, w.ctas = c.Path, c.CTAs
	actual := time.Duration(takes(rng, w))
	clock.Advance(actual)
	pl.Observe(c, r, actual)
	return h100(w), false
}
