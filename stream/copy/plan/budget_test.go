package plan_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// plant is a simulated host program next to copies. harm is its slowdown in percent for a number of
// thread blocks.
type plant struct {
	clock  *clockwork.FakeClock
	budget *plan.Budget
	harm   func(ctas int) float64
}

func newPlant(t *testing.T, o plan.BudgetOptions, interference func(ctas int) float64) *plant {
	t.Helper()
	p := &plant{clock: clockwork.NewFakeClock(), harm: interference}
	o.Clock = p.clock
	b, err := plan.NewBudget(o)
	if err != nil {
		t.Fatal(err)
	}
	p.budget = b
	return p
}

// run simulates n intervals and returns the thread blocks of each.
func (p *plant) run(n int) []int {
	var ctas []int
	for range n {
		now := p.budget.Limits().CTAs
		ctas = append(ctas, now)
		p.clock.Advance(plan.DefaultInterval)
		p.budget.Hint(p.harm(now))
	}
	return ctas
}

func harmful(ctas []int, limit int) int {
	n := 0
	for _, c := range ctas {
		if c > limit {
			n++
		}
	}
	return n
}

// TestBudgetFindsTheBound uses a harm that grows with the thread blocks, and one that appears in a
// single step.
func TestBudgetFindsTheBound(t *testing.T) {
	step := func(ctas int) float64 {
		if ctas > 6 {
			return 60
		}
		return 0.5
	}
	for name, c := range map[string]struct {
		harm  func(int) float64
		bound int // largest number of thread blocks within the budget of 3%
		least int // smallest acceptable result
	}{
		"none":  {func(int) float64 { return 0 }, 16, 16},
		"steps": {step, 6, 6},
		// After the budget was lowered half-way, harm above half of the budget prevents that it is
		// raised.
		"gentle":        {func(n int) float64 { return 0.4 * float64(n) }, 7, 4},
		"always beyond": {func(int) float64 { return 50 }, 16, 1},
	} {
		p := newPlant(t, plan.BudgetOptions{MaxCTAs: 16}, c.harm)
		p.run(100)
		late := p.run(1000)
		if n := harmful(late, c.bound); n > 10 {
			t.Errorf("%s: beyond the budget in %d of 1000 intervals", name, n)
		}
		sum := 0
		for _, n := range late {
			if n < 1 {
				t.Fatalf("%s: %d thread blocks starve the copies", name, n)
			}
			sum += n
		}
		if mean := float64(sum) / 1000; mean < float64(c.least)*0.9 {
			t.Errorf("%s: %.1f thread blocks on average, want about %d", name, mean, c.least)
		}
	}
}

// TestBudgetFollowsItsPlant changes the bound of the program while it runs. The budget must follow.
func TestBudgetFollowsItsPlant(t *testing.T) {
	bound := 2
	p := newPlant(t, plan.BudgetOptions{MaxCTAs: 16}, func(n int) float64 {
		if n > bound {
			return 20
		}
		return 0
	})
	p.run(200)
	if got := p.budget.Limits().CTAs; got > 2 {
		t.Fatalf("%d thread blocks, want 2 at most", got)
	}
	bound = 12
	p.run(2000)
	if got := p.budget.Limits().CTAs; got < 11 {
		t.Errorf("%d thread blocks long after the program left room for 12", got)
	}
	bound = 1
	p.run(10)
	if got := p.budget.Limits(); got.CTAs > 2 {
		t.Errorf("%+v ten intervals after the bound was lowered", got)
	}
	if n := harmful(p.run(500), 1); n > 15 {
		t.Errorf("beyond the budget in %d of 500 intervals after that", n)
	}
}

// TestBudgetIsSteady checks that harm between half and all of the budget changes nothing.
func TestBudgetIsSteady(t *testing.T) {
	p := newPlant(t, plan.BudgetOptions{}, func(n int) float64 { return 2 })
	before := p.budget.Limits()
	p.run(500)
	if got := p.budget.Limits(); got != before {
		t.Errorf("%+v, was %+v", got, before)
	}
}

// TestBudgetDoesNotOscillate uses noisy hints and plants with every possible bound. After it has
// settled, the budget must change rarely and stay within its limits.
func TestBudgetDoesNotOscillate(t *testing.T) {
	const highest = 16
	o := plan.BudgetOptions{MaxCTAs: highest, MinChunkBytes: 4 << 20, MaxChunkBytes: 64 << 20}
	for bound := 1; bound <= highest; bound++ {
		rng := rand.New(rand.NewPCG(uint64(bound), 1))
		p := newPlant(t, o, func(ctas int) float64 {
			// Harm is a third of the budget up to the bound, and twice the budget one above it.
			interference := 1 + 5*max(0, float64(ctas-bound))
			return interference * (0.8 + 0.4*rng.Float64())
		})
		p.run(500)
		changes, beyond, last := 0, 0, p.budget.Limits()
		for range 1000 {
			p.run(1)
			now := p.budget.Limits()
			if now.CTAs < 1 || now.CTAs > highest || now.ChunkBytes < o.MinChunkBytes || now.ChunkBytes > o.MaxChunkBytes {
				t.Fatalf("bound %d: %+v is out of bounds", bound, now)
			}
			if now.CTAs != last.CTAs {
				changes++
			}
			if now.CTAs > bound {
				beyond++
			}
			last = now
		}
		// Testing whether the bound has moved costs one step up, a halving and the steps back. This
		// must be rare.
		if changes > 60 || beyond > 10 {
			t.Errorf("bound %d: %d changes, beyond it in %d of 1000 intervals", bound, changes, beyond)
		}
		if last.CTAs < (bound+1)/2 {
			t.Errorf("bound %d: the budget settled at %d thread blocks", bound, last.CTAs)
		}
	}
}

// TestBudgetChunk checks the chunk size. It grows to its maximum while kernels have to wait, and
// shrinks while none does, whatever the host program reports. Waits do not change the thread
// blocks. A planner reports waits to its budget.
func TestBudgetChunk(t *testing.T) {
	clock := clockwork.NewFakeClock()
	const least, most = 4 << 20, 64 << 20
	budget, err := plan.NewBudget(plan.BudgetOptions{MinChunkBytes: least, MaxChunkBytes: most, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	pl := newPlanner(t, plan.Default(), plan.Options{Clock: clock, Budget: budget})
	r := plan.Request{Dir: plan.D2H, Pieces: 1 << 14, Runs: 1 << 14, HostRuns: 1, Bytes: 64 << 20}
	for _, goal := range []plan.Goal{plan.Throughput, plan.Balanced, plan.Background} {
		under, err := pl.With(plan.Policy{Goal: goal})
		if err != nil {
			t.Fatal(err)
		}
		run := func(n int, wait time.Duration) plan.Limits {
			for range n {
				c := under.Choose(r, plan.PathSet(stream.PathStaged))
				alone, _ := newPlanner(t, plan.Default(), plan.Options{}).Predict(r, c.Path, c.CTAs)
				clock.Advance(max(alone+wait, plan.DefaultInterval))
				under.Observe(c, r, alone+wait)
			}
			return budget.Limits()
		}
		before := budget.Limits()
		after := run(150, 0)
		if goal == plan.Throughput {
			if after != before || before.ChunkBytes != most {
				t.Errorf("%+v before and %+v after batches that no budget bounds", before, after)
			}
			continue
		}
		if after != (plan.Limits{CTAs: plan.DefaultMaxCTAs, ChunkBytes: least}) {
			t.Errorf("%s: %+v where nothing waits", goal, after)
		}
		if got := run(1, 10*time.Millisecond); got != (plan.Limits{CTAs: plan.DefaultMaxCTAs, ChunkBytes: most}) {
			t.Errorf("%s: %+v as soon as something waits", goal, got)
		}
		if c := under.Choose(r, plan.PathSet(stream.PathStaged)); c.ChunkBytes != most {
			t.Errorf("%s: %+v, want the longest chunk", goal, c)
		}
	}
	budget.Hint(50)
	clock.Advance(plan.DefaultInterval)
	budget.Hint(50)
	if got := budget.Limits(); got != (plan.Limits{CTAs: plan.DefaultMaxCTAs / 2, ChunkBytes: most}) || budget.Interference() < 10 {
		t.Errorf("%+v, harm %.1f times the budget, after a report of harm", got, budget.Interference())
	}
}

// TestDefectShortChunksStayBesideALargeProduct uses chunks of 8 MiB whose batches take 1.8 times as
// long as on an idle device, as next to a matrix product of 8192 rows. The chunks must grow.
func TestDefectShortChunksStayBesideALargeProduct(t *testing.T) {
	clock := clockwork.NewFakeClock()
	budget, err := plan.NewBudget(plan.BudgetOptions{Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	batch := func(n int, took time.Duration) plan.Limits {
		for range n {
			clock.Advance(plan.DefaultInterval)
			budget.AddDuration(took, 5*time.Millisecond)
		}
		return budget.Limits()
	}
	if got := batch(200, 5*time.Millisecond); got.ChunkBytes != plan.DefaultMinChunkBytes {
		t.Fatalf("%+v where nothing waits", got)
	}
	if got := batch(2, 9*time.Millisecond); got.ChunkBytes != plan.DefaultMaxChunkBytes {
		t.Errorf("%+v where each batch takes 1.8 times as long", got)
	}
}

// TestBudgetJudgesWaitsByTime checks that waits are weighted by time: a few short delayed batches
// among long ones without delay do not count.
func TestBudgetJudgesWaitsByTime(t *testing.T) {
	clock := clockwork.NewFakeClock()
	budget, err := plan.NewBudget(plan.BudgetOptions{Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		budget.AddDuration(100*time.Microsecond, 10*time.Microsecond)
		clock.Advance(plan.DefaultInterval)
		budget.AddDuration(5*time.Millisecond, 5*time.Millisecond)
	}
	if got := budget.Limits().ChunkBytes; got != plan.DefaultMinChunkBytes {
		t.Errorf("chunks of %d bytes", got)
	}
}

func TestBudgetOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]plan.BudgetOptions{
		"harm":     {InterferencePercent: -1},
		"queueing": {Queueing: math.NaN()},
		"CTAs":     {MaxCTAs: -1},
		"chunks":   {MinChunkBytes: 2, MaxChunkBytes: 1},
		"interval": {Interval: -1},
	} {
		if _, err := plan.NewBudget(o); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: error %v, want ErrInvalid", name, err)
		}
	}
	b, err := plan.NewBudget(plan.BudgetOptions{MaxChunkBytes: 4096})
	if err != nil {
		t.Fatal(err)
	}
	b.Hint(math.NaN())
	b.AddDuration(time.Second, 0)
	if got := b.Limits(); got.ChunkBytes != 4096 || got.CTAs != plan.DefaultMaxCTAs {
		t.Errorf("%+v", got)
	}
}

func TestPacer(t *testing.T) {
	var p plan.Pacer
	now := time.Unix(1000, 0)
	if w := p.Next(now, 10*time.Millisecond); w != 0 {
		t.Errorf("the first waits %v", w)
	}
	if w := p.Next(now, 10*time.Millisecond); w != 8*time.Millisecond {
		t.Errorf("the second waits %v, want 8ms: it may be early by two", w)
	}
	if w := p.Next(now.Add(15*time.Millisecond), 0); w != 3*time.Millisecond {
		t.Errorf("the third waits %v, want 3ms", w)
	}
	now = now.Add(time.Hour)
	if w := p.Next(now, 10*time.Millisecond); w != 0 {
		t.Errorf("after a pause it waits %v", w)
	}
	if w := p.Next(now, 10*time.Millisecond); w != 8*time.Millisecond {
		t.Errorf("a pause saved up time: the next waits %v", w)
	}
}

// TestPacerKeepsTheRate checks that a pacer reaches its rate even if work is short and timers fire
// a millisecond late.
func TestPacerKeepsTheRate(t *testing.T) {
	const pace, n = 200 * time.Microsecond, 1000
	var p plan.Pacer
	begun := time.Unix(1000, 0)
	now := begun
	for range n {
		if w := p.Next(now, 0); w > 0 {
			now = now.Add(w + time.Millisecond)
		}
		p.Next(now, pace)
	}
	if took := now.Sub(begun); took > n*pace || took < n*pace-5*time.Millisecond {
		t.Errorf("%v, want %v", took, n*pace)
	}
}
