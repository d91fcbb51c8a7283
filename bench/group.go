package bench

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/kvlane/kvlane/stream/copy/measure"
)

// rounds is the number of rounds of a group.
const rounds = 3

// Limits of points whose number of repetitions depends on the budget.
const (
	probeBlocks = 512 // maximum number of blocks of a probe
	probeBytes  = 16 << 20
	// A repetition should take at most 1/parts of its point's time, or minRep. Contenders that take
	// slowFactor times as long as the fastest copy fewer blocks.
	parts      = minReps + rounds + 2
	minRep     = 2 * time.Millisecond
	slowFactor = 2
)

// place is a cell with a direction and an arrangement of the host memory. A group measures one
// place.
type place struct {
	Cell
	dir    Direction
	layout Layout
}

// String returns the name of the place.
func (p place) String() string {
	return fmt.Sprintf("%d x %s, %s, %s", p.Count, BytesText(p.Size), p.dir, p.layout)
}

// entrant is a contender in a group, with its movers and measurements.
type entrant struct {
	who     Contender
	form    Form
	movers  []mover
	runner  *planRunner
	samples *samples
}

// group measures contenders at one place in interleaved rounds, with a large copy between rounds. A
// disturbance then affects all contenders and the large copies.
type group struct {
	b        *bench
	at       place
	entrants []*entrant
	most     int // maximum number of blocks in a batch
	until    time.Time
	large    []float64
}

// measure returns the points of the entrants.
func (g *group) measure(ctx context.Context) ([]Point, error) {
	b := g.b
	for _, e := range g.entrants {
		e.runner = newPlanRunner(ctx, e.movers, g.plans(e))
		defer e.runner.stop()
	}
	if err := g.fit(ctx); err != nil {
		return nil, err
	}
	runtime.GC()
	remaining := rounds * len(g.entrants) // number of remaining rounds of all entrants
	for round := range rounds {
		if b.budget.Over() {
			return nil, ErrOverBudget
		}
		if err := g.reference(ctx); err != nil {
			return nil, err
		}
		for i := range measure.Order(round, len(g.entrants)) {
			e := g.entrants[i]
			if round == 0 {
				b.step("%s, %s", g.at, e.who.Name())
			}
			if err := g.measureRound(ctx, e, round, remaining); err != nil {
				return nil, &entrantError{e.who, err}
			}
			remaining--
		}
	}
	if err := g.reference(ctx); err != nil {
		return nil, err
	}
	points := make([]Point, len(g.entrants))
	for i, e := range g.entrants {
		points[i] = g.point(e)
	}
	return points, nil
}

// entrantError is the error of one contender.
type entrantError struct {
	who Contender
	err error
}

func (e *entrantError) Error() string { return e.who.Name() + ": " + e.err.Error() }
func (e *entrantError) Unwrap() error { return e.err }

func (g *group) reference(ctx context.Context) error {
	gbps, err := g.b.large.sample(ctx, g.at.dir)
	g.large = append(g.large, gbps)
	return err
}

// plans returns the plan of one direction, or the plans of both.
func (g *group) plans(e *entrant) []*plan {
	ways := []Direction{g.at.dir}
	if g.at.dir == Both {
		ways = []Direction{ToDevice, ToHost}
	}
	form := e.form
	if e.who.Baseline != NoBaseline { // calls of a queue support extents only
		form = Lists
	}
	plans := make([]*plan, 0, len(ways))
	for _, d := range ways {
		plans = append(plans, g.b.newPlan(form, g.most, g.at.Cell, d, g.at.layout))
	}
	return plans
}

// once runs one repetition.
func (e *entrant) once(ctx context.Context, b *bench) (took, prep time.Duration, err error) {
	for _, p := range e.runner.plans {
		p.Draw(b.rng)
	}
	start := time.Now()
	for _, p := range e.runner.plans {
		p.Write()
	}
	prep = time.Since(start)
	took, err = e.runner.move(ctx)
	return took, prep, err
}

// resize sets the number of blocks of a repetition.
func (e *entrant) resize(n int) {
	for _, p := range e.runner.plans {
		p.Resize(n)
	}
}

// fit reduces the number of blocks if even the fastest contender would take too long. Contenders
// that are far slower get fewer blocks. All others get as many as the fastest, so that they are
// comparable.
func (g *group) fit(ctx context.Context) error {
	probe := min(probeBlocks, max(1, int(probeBytes/g.at.Size)))
	if g.b.o.Reps > 0 || g.at.Count <= probe {
		return nil
	}
	share := g.until.Sub(g.b.o.clock()) / time.Duration(len(g.entrants))
	each := make([]float64, len(g.entrants)) // nanoseconds per block
	for i, e := range g.entrants {
		e.resize(probe)
		least := time.Duration(math.MaxInt64)
		// Probe twice, because the first run includes work such as loading kernels.
		for range 2 {
			if g.b.budget.Over() {
				return ErrOverBudget
			}
			took, _, err := e.once(ctx, g.b)
			if err != nil {
				return &entrantError{e.who, err}
			}
			least = min(least, took)
		}
		each[i] = float64(max(least, 1)) / float64(probe)
	}
	within := func(limit, each float64, count int) int {
		return min(count, max(probe, int(limit/each)))
	}
	fastest := slices.Min(each)
	limit := float64(max(minRep, share/parts))
	n := within(limit, fastest, g.at.Count)
	for i, e := range g.entrants {
		e.resize(within(max(limit, slowFactor*fastest*float64(n)), each[i], n))
	}
	return nil
}

// measureRound runs the repetitions of a contender in one round. left is the number of remaining
// rounds including this one; the round gets the corresponding share of the remaining time. The
// first repetition is not counted, because it starts an idle contender or waits for work that the
// previous one left.
func (g *group) measureRound(ctx context.Context, e *entrant, round, left int) error {
	b := g.b
	now := b.o.clock()
	until := now.Add(g.until.Sub(now) / time.Duration(left))
	if round == 0 {
		if err := b.rig.poison(ctx, e.runner.plans...); err != nil {
			return err
		}
	}
	if _, _, err := e.once(ctx, b); err != nil {
		return err
	}
	reps, least := maxReps/rounds, minReps/rounds
	if b.o.Reps > 0 {
		reps = b.o.Reps*(round+1)/rounds - b.o.Reps*round/rounds
		least = reps
	}
	if round == 0 {
		if err := b.check(ctx, e.runner.plans); err != nil {
			return err
		}
		e.samples = newSamples(max(b.o.Reps, maxReps))
	}
	e.samples.begin()
	for n := 0; n < reps && (n < least || b.o.clock().Before(until)); n++ {
		if b.budget.Over() {
			return ErrOverBudget
		}
		took, prep, err := e.once(ctx, b)
		if err != nil {
			return err
		}
		e.samples.add(e.runner, took, prep)
	}
	e.samples.end()
	if round == rounds-1 {
		return b.check(ctx, e.runner.plans)
	}
	return nil
}

func (b *bench) check(ctx context.Context, plans []*plan) error {
	for _, p := range plans {
		if err := b.rig.check(ctx, p); err != nil {
			return err
		}
	}
	return nil
}
