package plan_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

var allPaths = plan.PathSet(stream.PathCopyEngine, stream.PathKernel,
	stream.PathStaged, stream.PathNIC)

// ways lists the abilities of a machine, for random profiles.
var ways = []struct {
	path stream.Path
	ctas []int
}{
	{stream.PathCopyEngine, []int{0}},
	{stream.PathKernel, []int{1, 2, 4, 8, 16}},
	{stream.PathStaged, []int{16}},
	{stream.PathNIC, []int{0}},
}

// randomProfile returns a random profile. The times of its paths grow with the count.
func randomProfile(rng *rand.Rand) plan.Profile {
	p := plan.Profile{Source: "test", Sizes: slices.Clone(fitSizes), Counts: slices.Clone(fitCounts), GBps: [4]float64{50 + 10*rng.Float64(), 50, 300, 300}}
	for dir := range plan.Peer + 1 {
		for _, w := range ways {
			for _, ctas := range w.ctas {
				m := randomModel(rng, plan.Model{Path: w.path, CTAs: ctas, Dir: dir})
				if rng.IntN(8) > 0 {
					p.Models = append(p.Models, m)
				}
				// A single copy takes equally long on both sides. Further scattered copies cost
				// more.
				m.Side, m.Times = plan.Scattered, slices.Clone(m.Times)
				more := rng.Float64() / 2
				for i := range m.Times {
					one := m.Times[i/len(fitCounts)*len(fitCounts)]
					m.Times[i] += more * (m.Times[i] - one)
				}
				if rng.IntN(8) > 0 {
					p.Models = append(p.Models, m)
				}
			}
		}
	}
	return p
}

func randomModel(rng *rand.Rand, m plan.Model) plan.Model {
	start, hidden, latency := 1e3+30e3*rng.Float64(), rng.Float64(), 0.5+rng.Float64()
	each, gbps := 3000*rng.Float64()*rng.Float64(), 5+50*rng.Float64()
	for _, size := range fitSizes {
		cost := each + float64(size)/gbps
		first := start*latency + cost
		for _, n := range fitCounts {
			m.Times = append(m.Times, max(first+(1-hidden)*float64(n-1)*cost, start+float64(n)*cost))
		}
	}
	m.Lead = 0.9 * rng.Float64() * slices.Min(m.Times)
	return m
}

func randomRequest(rng *rand.Rand) plan.Request {
	pieces := 1 << rng.IntN(17)
	r := plan.Request{
		Dir:    plan.Direction(rng.IntN(4)),
		Pieces: pieces, Runs: 1 + rng.IntN(pieces), HostRuns: 1 + rng.IntN(pieces),
		Bytes: int64(pieces) * (1 + rng.Int64N(1<<rng.IntN(21))),
	}
	if rng.IntN(2) == 0 {
		r.Ahead = time.Duration(rng.Int64N(1e6))
	}
	return r
}

func newPlanner(tb testing.TB, p plan.Profile, o plan.Options) *plan.Planner {
	tb.Helper()
	pl, err := plan.New(p, o)
	if err != nil {
		tb.Fatal(err)
	}
	return pl
}

// taken returns the cost of a path for computation. The thread blocks of staged copies run only
// part of the time.
func taken(p stream.Path, ctas int) float64 {
	n := float64(ctas)
	if p == stream.PathStaged {
		n /= 16
	}
	return n
}

// TestChoiceIsNearTheBest compares the choices on random machines with all predictions.
func TestChoiceIsNearTheBest(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	lean := 0
	for range 60 {
		profile := randomProfile(rng)
		for _, goal := range []plan.Goal{plan.Throughput, plan.Latency} {
			pl := newPlanner(t, profile, plan.Options{Policy: plan.Policy{Goal: goal}})
			for range 100 {
				r := randomRequest(rng)
				c := pl.Choose(r, allPaths)
				if c.Reason == plan.ReasonOpposed { // not optimized for speed: see TestOppositeTrafficIsLeftItsShare
					continue
				}
				cost := r
				if goal == plan.Latency {
					cost.Ahead = 0
				}
				best, bestTaken, chosen := time.Duration(math.MaxInt64), 0.0, time.Duration(0)
				for _, w := range ways {
					for _, ctas := range w.ctas {
						d, ok := pl.Predict(cost, w.path, ctas)
						if ok && d < best {
							best, bestTaken = d, taken(w.path, ctas)
						}
						if ok && w.path == c.Path && ctas == c.CTAs {
							chosen = d
						}
					}
				}
				if chosen == 0 || float64(chosen) > float64(best)*(1+2*plan.DefaultMargin)+2 {
					t.Fatalf("%s, %+v: chose %+v at %v, the best takes %v", goal, r, c, chosen, best)
				}
				if got := taken(c.Path, c.CTAs); got > bestTaken {
					t.Fatalf("%s, %+v: chose %v thread blocks, the best takes %v", goal, r, got, bestTaken)
				}
				if c.Reason == plan.ReasonLeanest {
					lean++
				}
				if want, _ := pl.Predict(r, c.Path, c.CTAs); c.Predicted != want {
					t.Fatalf("%+v: predicted %v in the choice, %v by Predict", r, c.Predicted, want)
				}
			}
		}
	}
	if lean == 0 {
		t.Error("no choice was ever made for fewer thread blocks")
	}
}

// TestPredictionsGrowWithTheCount checks that predictions grow with the count for any measurements.
// Time budgets depend on that.
func TestPredictionsGrowWithTheCount(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	profiles := []plan.Profile{plan.Default()}
	for range 40 {
		profiles = append(profiles, randomProfile(rng))
	}
	for _, profile := range profiles {
		pl := newPlanner(t, profile, plan.Options{})
		for i := range profile.Models {
			m := &profile.Models[i]
			for _, size := range []int64{1, 300, 4096, 10_000, 1 << 20, 50 << 20} {
				last := time.Duration(0)
				for _, n := range []int{1, 2, 3, 5, 8, 13, 64, 1000, 100_000} {
					r := plan.Request{Dir: m.Dir, Pieces: n, Runs: n, HostRuns: n, Bytes: int64(n) * size}
					if m.Side == plan.Contiguous {
						r.HostRuns = 1
					}
					d, ok := pl.Predict(r, m.Path, m.CTAs)
					if !ok || d <= 0 || d < last {
						t.Fatalf("%s %d %s: %d copies of %d bytes take %v (%v), fewer take %v", m.Path, m.CTAs, m.Dir, n, size, d, ok, last)
					}
					last = d
				}
			}
		}
	}
}

// scattered returns a request for n copies of size bytes, none of which are adjacent.
func scattered(dir plan.Direction, n int, size int64) plan.Request {
	return plan.Request{Dir: dir, Pieces: n, Runs: n, Bytes: int64(n) * size}
}

// TestDefaultChoices checks the choices with the built-in profile against measurements of such a
// machine.
func TestDefaultChoices(t *testing.T) {
	pl := newPlanner(t, plan.Default(), plan.Options{})
	plain := plan.PathSet(stream.PathCopyEngine, stream.PathKernel)
	for _, c := range []struct {
		what string
		r    plan.Request
		can  plan.Paths
		want stream.Path
	}{
		{"one small block", scattered(plan.H2D, 1, 4096), plain, stream.PathCopyEngine},
		{"a few dozen small blocks", scattered(plan.H2D, 64, 4096), plain, stream.PathKernel},
		{"many small blocks in", scattered(plan.H2D, 10_000, 4096), plain, stream.PathKernel},
		{"many small blocks out", scattered(plan.D2H, 10_000, 4096), plain, stream.PathKernel},
		{"large blocks", scattered(plan.H2D, 64, 8<<20), plain, stream.PathCopyEngine},
		{"neighbors that merge", plan.Request{Pieces: 10_000, Runs: 1, HostRuns: 1, Bytes: 10_000 << 12}, plain, stream.PathCopyEngine},
		{"host side contiguous", plan.Request{Pieces: 50_000, Runs: 50_000, HostRuns: 1, Bytes: 50_000 << 12}, plain.With(stream.PathStaged), stream.PathStaged},
		{"slots of 256 KiB", plan.Request{Pieces: 65_536, Runs: 65_536, HostRuns: 1024, Bytes: 65_536 << 12}, plain.With(stream.PathStaged), stream.PathStaged},
		{"host side scattered", scattered(plan.H2D, 50_000, 4096), plain.With(stream.PathStaged), stream.PathKernel},
		{"no kernels", scattered(plan.H2D, 10_000, 4096), plain.Without(stream.PathKernel), stream.PathCopyEngine},
		{"between devices", scattered(plan.Peer, 10_000, 4096), plain, stream.PathKernel},
	} {
		got := pl.Choose(c.r, c.can)
		if got.Path != c.want || got.Predicted <= 0 || got.Reason == "" {
			t.Errorf("%s: %+v, want %s", c.what, got, c.want)
		}
	}
}

// TestSumsByTheCPUCost checks paths that leave checksums to the CPU. They pay for a few blocks, if
// a launch costs more than the checksums, but not for many. In the background the CPU time does not
// count.
func TestSumsByTheCPUCost(t *testing.T) {
	pl := newPlanner(t, plan.Default(), plan.Options{})
	background, err := pl.With(plan.Policy{Goal: plan.Background})
	if err != nil {
		t.Fatal(err)
	}
	can := plan.PathSet(stream.PathCopyEngine, stream.PathKernel, stream.PathStaged)
	unsummed := can.Without(stream.PathKernel)
	for _, c := range []struct {
		planner *plan.Planner
		blocks  int
		want    stream.Path
	}{
		{pl, 1, stream.PathCopyEngine},
		{pl, 1 << 14, stream.PathKernel},
		{background, 1 << 14, stream.PathStaged},
	} {
		r := plan.Request{Pieces: c.blocks, Runs: c.blocks, HostRuns: 1, Bytes: int64(c.blocks) << 12}
		without := c.planner.Choose(r, can)
		r.Unsummed = unsummed
		got := c.planner.Choose(r, can)
		if got.Path != c.want {
			t.Errorf("%d blocks for %v go by %s (%s), want %s", c.blocks, c.planner.Policy().Goal, got.Path, got.Reason, c.want)
		}
		if got.Path == without.Path && got.Predicted != without.Predicted {
			t.Errorf("%d blocks: predicted %v with sums by the CPU, %v without: the copy takes the same", c.blocks, got.Predicted, without.Predicted)
		}
		if c.want == stream.PathKernel && without.Path == stream.PathKernel {
			t.Errorf("%d blocks go by kernel without sums too: the case shows nothing", c.blocks)
		}
	}
}

func TestBackground(t *testing.T) {
	can := plan.PathSet(stream.PathCopyEngine, stream.PathKernel)
	r := plan.Request{Dir: plan.H2D, Pieces: 10_000, Runs: 10_000, Bytes: 10_000 << 12}
	choose := func(p plan.Policy, b *plan.Budget) plan.Choice {
		p.Goal = plan.Background
		return newPlanner(t, plan.Default(), plan.Options{Policy: p, Budget: b}).Choose(r, can)
	}
	// Of 54.3 GB/s one thread block reaches 19.1, two reach 35.4 and four 49.6. Four cost other
	// work the least in total: each further multiprocessor costs little more than the first, and
	// fewer run for longer.
	for _, c := range []struct {
		share float64
		ctas  int
		want  int
	}{
		{0.3, 8, 4},
		{0.6, 8, 4},
		{0.88, 8, 4},
		{1, 8, 4},
		{0.88, 3, 2},
		{0, 0, 4},
	} {
		got := choose(plan.Policy{MaxCTAs: c.ctas, LinkShare: c.share}, nil)
		if got.Path != stream.PathKernel || got.CTAs != c.want {
			t.Errorf("share %v of at most %d: %+v, want %d thread blocks", c.share, c.ctas, got, c.want)
		}
		share := c.share
		if share == 0 {
			share = plan.DefaultLinkShare
		}
		if want := time.Duration(float64(r.Bytes) / (54.3 * share)); got.Pace < want-1 || got.Pace > want+1 {
			t.Errorf("share %v: pace %v, want %v", c.share, got.Pace, want)
		}
	}
	budget, err := plan.NewBudget(plan.BudgetOptions{MaxCTAs: 2})
	if err != nil {
		t.Fatal(err)
	}
	if got := choose(plan.Policy{LinkShare: 0.88}, budget); got.CTAs != 2 || got.ChunkBytes != plan.DefaultMaxChunkBytes {
		t.Errorf("under a budget of two thread blocks: %+v", got)
	}
}

// TestBackgroundKeepsToItsPath checks that slow copies next to a matrix product do not change the
// choice: the path that uses the fewest multiprocessors.
func TestBackgroundKeepsToItsPath(t *testing.T) {
	pl := newPlanner(t, plan.Default(), plan.Options{Policy: plan.Policy{Goal: plan.Background}})
	can := plan.PathSet(stream.PathCopyEngine, stream.PathKernel, stream.PathStaged)
	r := plan.Request{Dir: plan.H2D, Pieces: 1 << 14, Runs: 1 << 14, HostRuns: 1, Bytes: 64 << 20}
	for range 100 {
		c := pl.Choose(r, can)
		if c.Path != stream.PathStaged {
			t.Fatalf("%+v, want staged", c)
		}
		pl.Observe(c, r, 2*time.Duration(float64(r.Bytes)/54))
	}
	if c := pl.Choose(r, can); c.Predicted < time.Duration(1.9*float64(r.Bytes)/54) {
		t.Errorf("predicted %v: the prediction must follow the observations", c.Predicted)
	}
}

// TestBoundsDoNotStarve checks that if every path exceeds a bound, the one with the fewest thread
// blocks is used.
func TestBoundsDoNotStarve(t *testing.T) {
	pl := newPlanner(t, plan.Default(), plan.Options{Policy: plan.Policy{MaxCTAs: 1}})
	r := plan.Request{Pieces: 10, Runs: 10, Bytes: 10 << 12}
	within := r
	within.Dir = plan.D2D
	if c := pl.Choose(within, plan.PathSet(stream.PathKernel)); c.Path != stream.PathKernel || c.CTAs != 8 || c.Reason != plan.ReasonFewest {
		t.Errorf("%+v, want kernel with its fewest thread blocks", c)
	}
	if c := pl.Choose(r, plan.PathSet(stream.PathPosix)); c.Path != stream.PathPosix || c.Predicted != 0 || c.Reason != plan.ReasonUnmeasured {
		t.Errorf("%+v, want the path that was not measured", c)
	}
	if c := pl.Choose(plan.Request{}, allPaths); c.Path != stream.PathNone || c.Reason != plan.ReasonNothing {
		t.Errorf("%+v for nothing, want no path", c)
	}
	if c := pl.Choose(r, 0); c.Path != stream.PathNone {
		t.Errorf("%+v with no path, want none", c)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]plan.Options{
		"goal":      {Policy: plan.Policy{Goal: plan.Background + 1}},
		"CTAs":      {Policy: plan.Policy{MaxCTAs: -1}},
		"share":     {Policy: plan.Policy{LinkShare: 1.5}},
		"no number": {Policy: plan.Policy{LinkShare: math.NaN()}},
		"margin":    {Margin: 1},
		"half-life": {HalfLife: -1},
	} {
		if _, err := plan.New(plan.Default(), o); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: error %v, want ErrInvalid", name, err)
		}
	}
	pl := newPlanner(t, plan.Default(), plan.Options{})
	if _, err := pl.With(plan.Policy{MaxCTAs: -1}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("With: error %v, want ErrInvalid", err)
	}
	for g := plan.Throughput; g <= plan.Background; g++ {
		if got, err := plan.ParseGoal(g.String()); err != nil || got != g {
			t.Errorf("goal %s reads as %s, %v", g, got, err)
		}
	}
	for _, name := range []string{"speed", "unset", ""} {
		if _, err := plan.ParseGoal(name); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("ParseGoal(%q): error %v, want ErrInvalid", name, err)
		}
	}
	if got := pl.Policy().Goal; got != plan.Throughput {
		t.Errorf("a planner without a goal is for %s", got)
	}
}

func TestChooseDoesNotAllocate(t *testing.T) {
	pl := newPlanner(t, plan.Default(), plan.Options{Clock: clockwork.NewFakeClock()})
	r := plan.Request{Pieces: 1000, Runs: 1000, Bytes: 1000 << 12}
	if n := testing.AllocsPerRun(100, func() {
		c := pl.Choose(r, allPaths)
		pl.Observe(c, r, c.Predicted)
	}); n != 0 {
		t.Errorf("%v allocations for each choice and observation, want none", n)
	}
}

// BenchmarkChoose measures a choice and its observation for different requests.
func BenchmarkChoose(b *testing.B) {
	profile := randomProfile(rand.New(rand.NewPCG(9, 9)))
	for _, goal := range []plan.Goal{plan.Throughput, plan.Background} {
		pl := newPlanner(b, profile, plan.Options{Policy: plan.Policy{Goal: goal}})
		for name, r := range map[string]plan.Request{
			"scattered": {Pieces: 1000, Runs: 1000, Bytes: 1000 * 5000},
			"mixed":     {Pieces: 1000, Runs: 500, HostRuns: 20, Bytes: 1000 * 5000},
		} {
			b.Run(fmt.Sprintf("%s/%s", goal, name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					c := pl.Choose(r, allPaths)
					pl.Observe(c, r, c.Predicted)
				}
			})
		}
	}
}

// TestFill checks that Fill adds models that were not measured, for the profile's sizes and counts,
// and marks them.
func TestFill(t *testing.T) {
	m := plan.Model{Path: stream.PathCopyEngine, Times: []float64{5000, 7e6, 6000, 8e6, 9000, 9e6}, Points: 6}
	p := plan.Profile{Sizes: []int64{300, 5000, 3 << 20}, Counts: []int64{1, 1000}, Models: []plan.Model{m}}
	p.GBps[plan.H2D] = 20
	p.Fill(plan.Default())
	if p.GBps[plan.H2D] != 20 || p.GBps[plan.Peer] == 0 {
		t.Errorf("rates %v", p.GBps)
	}
	own, filled := newPlanner(t, plan.Default(), plan.Options{}), newPlanner(t, p, plan.Options{})
	r := plan.Request{Dir: plan.Peer, Pieces: 1000, Runs: 1000, Bytes: 1000 * 5000}
	want, _ := own.Predict(r, stream.PathKernel, 8)
	if got, ok := filled.Predict(r, stream.PathKernel, 8); !ok || got != want {
		t.Errorf("peer copies are predicted at %v, and at %v by the source profile", got, want)
	}
	r.Dir = plan.H2D
	if _, ok := filled.Predict(r, stream.PathKernel, 8); ok {
		t.Error("a direction that was measured got paths that were not")
	}
	for i := range p.Models {
		if (p.Models[i].Points > 0) != (p.Models[i].Dir == plan.H2D) {
			t.Errorf("%d points for %s %s", p.Models[i].Points, p.Models[i].Path, p.Models[i].Dir)
		}
	}
}
