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

// rounds is how many turns each contender of a group has.
const rounds = 3

// What a point may cost where the budget decides.
const (
	probeBlocks = 512 // of a point of more blocks, to see how slow it is
	probeBytes  = 16 << 20
	// A repetition should take no longer than a part of the point's time, which has at least that many, or than minRep. Contenders that
	// take slowFactor times as long as the fastest move fewer blocks.
	parts      = minReps + rounds + 2
	minRep     = 2 * time.Millisecond
	slowFactor = 2
)

// place is what a group measures: a cell in one direction and placement.
type place struct {
	Cell
	dir    Direction
	layout Layout
}

// String names the place.
func (p place) String() string {
	return fmt.Sprintf("%d x %s, %s, %s", p.Count, BytesText(p.Size), p.dir, p.layout)
}

// entrant is a contender in a group.
type entrant struct {
	who     Contender
	form    Form
	movers  []mover
	crew    *crew
	samples *samples
}

// group measures contenders on the same place by turns, with a large copy between the rounds: whatever else keeps the host or
// the link busy for a while hits all of them, and C too.
type group struct {
	b        *bench
	at       place
	entrants []*entrant
	most     int // blocks of a batch
	until    time.Time
	large    []float64
}

// measure returns the entrants' points.
func (g *group) measure(ctx context.Context) ([]Point, error) {
	b := g.b
	for _, e := range g.entrants {
		e.crew = newCrew(ctx, e.movers, g.plans(e))
		defer e.crew.dismiss()
	}
	if err := g.fit(ctx); err != nil {
		return nil, err
	}
	runtime.GC()
	turns := rounds * len(g.entrants) // to come
	for round := range rounds {
		if b.budget.Over() {
			return nil, ErrOverBudget
		}
		if err := g.reference(ctx); err != nil {
			return nil, err
		}
		for i := range measure.Turns(round, len(g.entrants)) {
			e := g.entrants[i]
			if round == 0 {
				b.step("%s, %s", g.at, e.who.Name())
			}
			if err := g.turn(ctx, e, round, turns); err != nil {
				return nil, &entrantError{e.who, err}
			}
			turns--
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

// entrantError is the failure of one contender.
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

// plans are of one way, or of both.
func (g *group) plans(e *entrant) []*plan {
	ways := []Direction{g.at.dir}
	if g.at.dir == Both {
		ways = []Direction{ToDevice, ToHost}
	}
	form := e.form
	if e.who.Baseline != NoBaseline { // calls of a queue take extents only
		form = Lists
	}
	plans := make([]*plan, 0, len(ways))
	for _, d := range ways {
		plans = append(plans, g.b.newPlan(form, g.most, g.at.Cell, d, g.at.layout))
	}
	return plans
}

// once makes one repetition.
func (e *entrant) once(ctx context.Context, b *bench) (took, prep time.Duration, err error) {
	for _, p := range e.crew.plans {
		p.Draw(b.rng)
	}
	start := time.Now()
	for _, p := range e.crew.plans {
		p.Write()
	}
	prep = time.Since(start)
	took, err = e.crew.move(ctx)
	return took, prep, err
}

// resize makes repetitions of n blocks.
func (e *entrant) resize(n int) {
	for _, p := range e.crew.plans {
		p.Resize(n)
	}
}

// fit lets the group move fewer blocks where even the fastest contender would take too long for all of them, and contenders that
// are far slower fewer than that. What is about as fast as the fastest moves as many, or it could not be compared.
func (g *group) fit(ctx context.Context) error {
	probe := min(probeBlocks, max(1, int(probeBytes/g.at.Size)))
	if g.b.o.Reps > 0 || g.at.Count <= probe {
		return nil
	}
	share := g.until.Sub(g.b.o.clock()) / time.Duration(len(g.entrants))
	each := make([]float64, len(g.entrants)) // nanoseconds of a block
	for i, e := range g.entrants {
		e.resize(probe)
		least := time.Duration(math.MaxInt64)
		// Twice, as the first may wait for what is loaded or started on first use.
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

// turn makes some of a contender's repetitions, and with left turns to come, itself included, takes its part of the time. The first of
// a turn does not count: it starts what the contender left idle, or waits for what the one before left running.
func (g *group) turn(ctx context.Context, e *entrant, round, left int) error {
	b := g.b
	now := b.o.clock()
	until := now.Add(g.until.Sub(now) / time.Duration(left))
	if round == 0 {
		if err := b.rig.poison(ctx, e.crew.plans...); err != nil {
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
		if err := b.check(ctx, e.crew.plans); err != nil {
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
		e.samples.add(e.crew, took, prep)
	}
	e.samples.end()
	if round == rounds-1 {
		return b.check(ctx, e.crew.plans)
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
