package calibrate_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/calibrate"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// work describes a batch for h100.
type work struct {
	path stream.Path
	ctas int
	dir  plan.Direction
	side plan.Side
	n    int
	size int64
}

// h100 returns the approximate time of a batch on an H100 in nanoseconds. It models the properties
// that make prediction hard: engines that behave differently below 32 KiB, kernels whose first
// copies cost nothing and whose small copies are limited by the CPU that describes them, and a
// pipeline that must fill.
func h100(w work) float64 {
	n, size := float64(w.n), float64(w.size)
	in := w.dir == plan.H2D
	pick := func(h2d, d2h float64) float64 {
		if in {
			return h2d
		}
		return d2h
	}
	batched := func() float64 {
		if size < 32<<10 {
			return n * (pick(500, 350) + size/pick(25, 60))
		}
		return n * (pick(150, 120) + size/54.5)
	}
	switch w.path {
	case stream.PathCopyEngine:
		if w.n == 1 || w.dir == plan.D2D {
			return 7000 + n*(pick(2400, 2200)+size/54.5)
		}
		return 11000 + batched()
	case stream.PathKernel:
		one := pick(1, 2) * min(20.8, 9+size/400)
		return kernel(w, 12000, one*float64(w.ctas), pick(49.5, 50.9))
	case stream.PathStaged:
		t := max(n*(1+size/900)*32/float64(w.ctas), n*size/pick(53.2, 54))
		if w.side == plan.Scattered {
			t = max(t, batched())
		}
		return 24000 + min(n*size, 8<<20)/700 + t
	case stream.PathNone, stream.PathPosix, stream.PathURing, stream.PathCuFile, stream.PathNIC, stream.PathNICSoft:
	}
	return math.NaN()
}

func kernel(w work, launch, all, link float64) float64 {
	n, size := float64(w.n), float64(w.size)
	rate := min(all, link*size/(size+25))
	first := 1000 + min(size, 16<<10)/4
	return max(launch+max(first, n*size/rate), 3000+18*n)
}

// disturbed is noisy, and one batch in thirty is delayed by half of its time.
func disturbed(rng *rand.Rand, w work) float64 {
	took := noisy(rng, w)
	if rng.IntN(30) == 0 {
		took += h100(w) / 2
	}
	return took
}

// noisy returns h100 with a normally distributed error of 5%.
func noisy(rng *rand.Rand, w work) float64 {
	return h100(w) * (1 + 0.05*min(max(rng.NormFloat64(), -3), 3))
}

var (
	busPaths = []stream.Path{stream.PathCopyEngine, stream.PathKernel, stream.PathStaged}
	blocks   = map[stream.Path][]int{
		stream.PathCopyEngine: {0}, stream.PathKernel: {1, 2, 4, 8, 16},
		stream.PathStaged: {8, 32},
	}
)

// calibrated returns the profile that calibration measures on a simulated H100 with the given
// times. A calibration that is spoiled by a disturbance is repeated, as an engine would.
func calibrated(t *testing.T, rng *rand.Rand, takes func(*rand.Rand, work) float64) plan.Profile {
	t.Helper()
	m := newMachine(t)
	m.cost = func(w work) float64 { return takes(rng, w) }
	o := m.options()
	o.Bytes, o.Budget = 256<<20, calibrate.DefaultBudget
	for range 3 {
		r, err := m.run(o)
		if err != nil {
			t.Fatal(err)
		}
		if r.Took > calibrate.DefaultBudget*5/4 {
			t.Errorf("the calibration took %v", r.Took)
		}
		if r.Storable() {
			return r.Profile
		}
		t.Logf("not storable: %s", r.Loaded)
	}
	t.Fatal("no profile was storable")
	return plan.Profile{}
}
