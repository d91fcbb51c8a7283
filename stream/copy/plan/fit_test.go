package plan_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// truth is a model of a path: a launch time, warps that each copy pieces one after another, and a
// maximum total rate.
type truth struct {
	launch  float64 // ns
	perCopy float64 // ns that each copy adds to the work of the warps, whatever its size
	gbps    float64
	warps   float64 // pieces that are copied concurrently; 0: a copy engine, which copies one at a time
	wait    float64 // ns that a warp waits for each 2 KiB
}

func (w truth) time(n int, size int64) float64 {
	work := float64(n) * (w.perCopy + float64(size)/w.gbps)
	if w.warps == 0 {
		return w.launch + work
	}
	pieces := math.Ceil(float64(size) / (16 << 10))
	each := math.Ceil(min(float64(size), 16<<10)/2048) * w.wait
	rounds := math.Ceil(float64(n) * pieces / w.warps)
	// The first bytes arrive after a warp has waited once. After that the link is busy.
	return w.launch + max(rounds*each, w.wait+work)
}

var (
	fitSizes  = []int64{256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20}
	fitCounts = []int64{1, 4, 16, 64, 256, 1024, 4096}
)

// most is the number of bytes of the largest batch that calibration measures.
const most = 64 << 20

func (w truth) points(rng *rand.Rand, noise float64) []plan.Point {
	var points []plan.Point
	for _, size := range fitSizes {
		for _, n := range fitCounts {
			if n == 1 || n*size <= most {
				t := w.time(int(n), size) * (1 + noise*(2*rng.Float64()-1))
				points = append(points, plan.Point{Count: int(n), Size: size, Nanos: t})
			}
		}
	}
	return points
}

// fitted returns a planner with a model fitted to points. If gbps is not 0, it is the rate of a
// large copy.
func fitted(t *testing.T, points []plan.Point, gbps float64) (*plan.Planner, plan.Model) {
	t.Helper()
	m := plan.Model{Path: stream.PathKernel, CTAs: 8, Side: plan.Scattered}
	p := plan.Profile{Sizes: fitSizes, Counts: fitCounts}
	p.GBps[plan.H2D] = gbps
	if err := m.Fit(&p, points); err != nil {
		t.Fatal(err)
	}
	p.Models = []plan.Model{m}
	return newPlanner(t, p, plan.Options{}), m
}

func predict(t *testing.T, p *plan.Planner, n int, size int64) float64 {
	t.Helper()
	d, ok := p.Predict(plan.Request{Pieces: n, Runs: n, Bytes: int64(n) * size}, stream.PathKernel, 8)
	if !ok {
		t.Fatal("no prediction")
	}
	return float64(d.Nanoseconds())
}

// TestFitFindsTheCosts fits simulated measurements of several paths, and checks predictions between
// the measured points.
func TestFitFindsTheCosts(t *testing.T) {
	for name, c := range map[string]struct {
		truth
		between float64 // maximum relative error between the measured points
	}{
		"copy engine":      {truth{launch: 4100, perCopy: 2480, gbps: 54.4}, 0.001},
		"batched copies":   {truth{launch: 7000, perCopy: 380, gbps: 54.4}, 0.001},
		"kernel, 16 CTAs":  {truth{launch: 10000, perCopy: 5, gbps: 51, warps: 256, wait: 1400}, 0.15},
		"kernel, 1 CTA":    {truth{launch: 10000, perCopy: 5, gbps: 21, warps: 16, wait: 1400}, 0.20},
		"peer over NVLink": {truth{launch: 10000, perCopy: 1, gbps: 340, warps: 128, wait: 900}, 0.25},
	} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			points := c.points(rng, 0)
			p, _ := fitted(t, points, 0)
			for _, q := range points {
				if e := predict(t, p, q.Count, q.Size)/q.Nanos - 1; math.Abs(e) > 0.001 {
					t.Errorf("%d copies of %d bytes were measured, and are predicted %.1f%% off", q.Count, q.Size, 100*e)
				}
			}
			var worst, worstAt float64
			for _, size := range []int64{300, 2 << 10, 8 << 10, 24 << 10, 100 << 10, 700 << 10, 3 << 20} {
				for _, n := range []int{1, 2, 3, 8, 30, 100, 700} {
					if int64(n)*size > most {
						continue
					}
					e := math.Abs(predict(t, p, n, size)/c.time(n, size) - 1)
					if e > worst {
						worst, worstAt = e, float64(n)*1e9+float64(size)
					}
				}
			}
			if worst > c.between {
				t.Errorf("between the points the worst error is %.3f at %.0f, want at most %.3f", worst, worstAt, c.between)
			}
		})
	}
}

// TestFitMeasuredLatency fits times of n copies of 4 KiB on an H100, with a kernel and with single
// copies. Small counts must be predicted as well as large ones, because the best path changes
// there.
func TestFitMeasuredLatency(t *testing.T) {
	const size = 4 << 10
	measured := map[string][]float64{
		"kernel": {11.8, 12.1, 12.8, 15.7, 34.6, 108},
		"copies": {6.7, 14.5, 45.9, 176, 670, 2618},
	}
	for name, micros := range measured {
		var points []plan.Point
		for i, us := range micros {
			if i%2 == 0 || i == len(micros)-1 {
				points = append(points, plan.Point{Count: int(fitCounts[i]), Size: size, Nanos: us * 1e3})
			}
		}
		p, _ := fitted(t, points, 0)
		for i, us := range micros {
			// Every second count was left out, so measured counts are a factor of sixteen apart.
			if e := predict(t, p, int(fitCounts[i]), size)/(us*1e3) - 1; math.Abs(e) > 0.12 {
				t.Errorf("%s: %d copies of 4 KiB are predicted %+.1f%% off", name, fitCounts[i], 100*e)
			}
		}
	}
}

// TestFitFlattensNoise checks that predictions never fall as the count grows, and that a single
// disturbed point has a limited effect.
func TestFitFlattensNoise(t *testing.T) {
	const size = 4 << 10
	var points []plan.Point
	for i, us := range []float64{10, 18, 11, 13, 30, 100} {
		points = append(points, plan.Point{Count: int(fitCounts[i]), Size: size, Nanos: us * 1e3, Spread: 0.01 * float64(i)})
	}
	p, m := fitted(t, points, 0)
	for n, want := range map[int]float64{1: 10e3, 4: 14e3, 16: 14e3, 64: 14e3, 256: 30e3, 1024: 100e3} {
		if got := predict(t, p, n, size); math.Abs(got-want) > 1 {
			t.Errorf("%d copies are predicted at %v ns, want %v", n, got, want)
		}
	}
	if m.Spread != 0.03 {
		t.Errorf("spread %v, want the median of the points' spreads", m.Spread)
	}
}

// TestFitGrowth checks that a disturbed measurement of one of the two longest batches hardly
// changes predictions for longer ones.
func TestFitGrowth(t *testing.T) {
	const size, start, each = 4 << 10, 12e3, 85.0
	for name, spoil := range map[string][2]float64{"as it is": {1, 1}, "no growth": {1.1, 0.9}, "hit": {3, 1}} {
		var points []plan.Point
		for i, n := range fitCounts {
			ns := start + each*float64(n)
			if k := i - (len(fitCounts) - 2); k >= 0 {
				ns *= spoil[k]
			}
			points = append(points, plan.Point{Count: int(n), Size: size, Nanos: ns})
		}
		p, _ := fitted(t, points, 54)
		if got := predict(t, p, 200_000, size) / (start + each*200_000); got < 0.8 || got > 1.25 || name == "as it is" && math.Abs(got-1) > 0.001 {
			t.Errorf("%s: 200,000 copies are predicted at %.2f of their time", name, got)
		}
	}
}

func TestFitFillsWhatWasNotMeasured(t *testing.T) {
	points := []plan.Point{{Count: 1, Size: 4 << 10, Nanos: 10e3}, {Count: 64, Size: 4 << 10, Nanos: 20e3}, {Count: 1, Size: 1 << 20, Nanos: 30e3}}
	p, m := fitted(t, points, 0)
	if m.Points != 3 {
		t.Errorf("%d points, want 3", m.Points)
	}
	last := 0.0
	for _, size := range []int64{1, 256, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 1 << 30} {
		got := predict(t, p, 1, size)
		if got < last || got <= 0 {
			t.Errorf("a copy of %d bytes takes %v ns, less than a smaller one", size, got)
		}
		last = got
	}
	if huge := predict(t, p, 1, 1<<30); huge < 1000*predict(t, p, 1, 1<<20)/2 {
		t.Errorf("1 GiB takes %v ns: the rate does not hold beyond the largest size", huge)
	}
}

func TestFitLead(t *testing.T) {
	w := truth{launch: 10000, perCopy: 5, gbps: 51}
	points := w.points(rand.New(rand.NewPCG(1, 1)), 0)
	for i := range points {
		points[i].Marginal = points[i].Nanos - 3000
	}
	p, m := fitted(t, points, 0)
	if math.Abs(m.Lead-3000) > 1 {
		t.Errorf("lead %v, want 3000", m.Lead)
	}
	r := plan.Request{Pieces: 16, Runs: 16, Bytes: 16 << 12}
	alone, _ := p.Predict(r, stream.PathKernel, 8)
	r.Ahead = 1e9
	behind, _ := p.Predict(r, stream.PathKernel, 8)
	if alone-behind != 3000 {
		t.Errorf("%v alone, %v behind others: want 3 us less", alone, behind)
	}
}

func TestFitRefusesNonsense(t *testing.T) {
	for name, points := range map[string][]plan.Point{
		"none":          nil,
		"no count":      {{Count: 0, Size: 4 << 10, Nanos: 1}},
		"not in counts": {{Count: 5, Size: 4 << 10, Nanos: 1}},
		"no time":       {{Count: 1, Size: 4 << 10}},
		"not a number":  {{Count: 1, Size: 4 << 10, Nanos: math.NaN()}},
		"not in sizes":  {{Count: 1, Size: 5000, Nanos: 1}},
		"negative time": {{Count: 1, Size: 4 << 10, Nanos: -1}},
	} {
		var m plan.Model
		if err := m.Fit(&plan.Profile{Sizes: fitSizes, Counts: fitCounts}, points); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: error %v, want ErrInvalid", name, err)
		}
	}
}
