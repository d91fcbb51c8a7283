package bench

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"runtime/debug"
	"slices"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

// Run measures dev. It allocates twice PoolBytes of device memory, and twice the longest transfer
// of pinned memory. It returns ErrCorrupt if bytes are wrong, ErrInvalid if the budget ended before
// a point was measured, and the cause of ctx if ctx ends. In the last case it also returns a report
// of the measured points, marked as incomplete.
func Run(ctx context.Context, dev device.Device, open Opener, o Options) (*Report, error) {
	o = o.withDefaults(dev.Info())
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("benchmark: %w", err)
	}
	if o.Began.IsZero() {
		o.Began = o.clock()
	}
	rep := newReport(dev.Info(), &o)
	b := &bench{dev: dev, open: open, o: &o, rng: rand.New(rand.NewPCG(o.Seed, 0)), rep: rep, groups: o.groups()}
	b.plan()
	err := b.all(ctx)
	b.inOrder()
	rep.Machine.Finish()
	return Outcome(ctx, b.budget, rep, &rep.Incomplete, "benchmark", err)
}

// Interrupted is the value of Incomplete in the report of a canceled run.
const Interrupted = "interrupted"

// all makes all measurements of the run.
func (b *bench) all(ctx context.Context) error {
	// Garbage collection during a repetition would use processors and slow down pointer writes.
	// Therefore it runs between points only.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	if err := b.host(ctx); err != nil {
		return err
	}
	if b.o.Peer != nil {
		if err := b.peers(ctx); err != nil {
			return fmt.Errorf("between devices: %w", err)
		}
	}
	return nil
}

// bench is the state of a run.
type bench struct {
	dev    device.Device
	rig    *rig
	large  *large
	open   Opener
	o      *Options
	rng    *rand.Rand
	rep    *Report
	groups []place // places between host and device; those of a cell are adjacent

	done, total int     // number of steps done, and of all steps
	budget      *Budget // the units are points
	noticed     bool
	near        *measure.Pool // pool of rows of nearRow bytes
	nearRow     int64
}

// plan counts the points and creates the budget.
func (b *bench) plan() {
	o := b.o
	units := b.gridUnits()
	if o.Peer != nil {
		units += len(o.peerPlaces()) * len(o.PeerContenders)
	}
	b.total = units
	b.budget = NewBudget(o.Budget, o.Began, o.clock, units)
}

func (b *bench) gridUnits() int { return len(b.groups) * len(b.o.Contenders) }

// host measures copies between host and device.
func (b *bench) host(ctx context.Context) (err error) {
	o := b.o
	if err := b.setUp(ctx, nil, o.PoolBytes, o.hostBytes(), o.largest(), o.ReferenceBytes); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.rig.Close()) }()
	defer func() {
		b.rep.Reference = Reference{
			ToDevice: b.large.rates(ToDevice), ToHost: b.large.rates(ToHost), Both: b.large.rates(Both),
		}
	}()
	b.budget.Part(b.gridUnits())
	return b.grid(ctx)
}

// grid measures the cells. The first measured cells are far apart in the grid.
func (b *bench) grid(ctx context.Context) error {
	cells := slices.Collect(runs(b.groups, func(p place) Cell { return p.Cell }))
	for _, i := range Spread(len(cells)) {
		points, err := b.measure(ctx, cells[i], entries(b.o.Contenders, b.o.Form), b.o.BatchBlocks)
		b.rep.add(points)
		if err != nil {
			return err
		}
	}
	return nil
}

// runs yields sublists of adjacent elements with equal keys.
func runs[T any, K comparable](list []T, key func(T) K) iter.Seq[[]T] {
	return func(yield func([]T) bool) {
		for len(list) > 0 {
			n := 1
			for n < len(list) && key(list[n]) == key(list[0]) {
				n++
			}
			if !yield(list[:n]) {
				return
			}
			list = list[n:]
		}
	}
}

// inOrder sorts the points in the order of the options.
func (b *bench) inOrder() {
	at := make(map[place]int, len(b.groups))
	for i, p := range b.groups {
		at[p] = i
	}
	for _, points := range [][]Point{b.rep.Points, b.rep.Soft} {
		slices.SortStableFunc(points, func(p, q Point) int {
			return at[place{p.Cell, p.Direction, p.Layout}] - at[place{q.Cell, q.Direction, q.Layout}]
		})
	}
}

// setUp allocates the memory and opens the large copy.
func (b *bench) setUp(ctx context.Context, peer device.Device, near, far, largest, large int64) (err error) {
	b.nearRow = 0
	if b.rig, err = newRig(ctx, b.dev, peer, near, far, largest); err != nil {
		return err
	}
	if b.o.Memory != nil && peer == nil {
		err = b.rig.register(b.o.Memory)
	}
	if err == nil {
		b.large, err = b.newLarge(ctx, large)
	}
	if err != nil {
		return errors.Join(err, b.rig.Close())
	}
	return nil
}

// pool returns the pool of rows of a length in device memory.
func (b *bench) pool(row int64) *measure.Pool {
	if b.nearRow != row {
		n := int(b.rig.near.src.Len() / row)
		b.nearRow, b.near = row, measure.NewPool(b.rng, n, n, 0)
	}
	return b.near
}

func (b *bench) step(format string, args ...any) {
	if b.o.Progress != nil {
		b.o.Progress(b.done, b.total, fmt.Sprintf(format, args...))
	}
	b.done++
}

// entry is a contender and the form of its batches.
type entry struct {
	who  Contender
	form Form
}

func entries(who []Contender, f Form) []entry {
	all := make([]entry, len(who))
	for i, c := range who {
		all[i] = entry{c, f}
	}
	return all
}

// measure measures several groups of the same contenders, which keep their streams open. It skips
// unsupported contenders and places that do not fit the budget; the report has the reasons. After
// an error it also returns the points measured before.
func (b *bench) measure(ctx context.Context, places []place, who []entry, most int) (points []Point, err error) {
	if _, fits := b.budget.Begin(len(who)); !fits {
		return nil, b.leaveOut(places, len(who))
	}
	mark := b.rig.Mark()
	defer func() { err = errors.Join(err, b.rig.CloseTo(mark)) }()
	expected := len(who)
	entrants, err := b.openEntrants(who)
	for i := 0; err == nil && i < len(places); {
		gone := (expected - len(entrants)) * (len(places) - i) // a missing contender has no points
		b.budget.Skip(gone)
		b.total, expected = b.total-gone, len(entrants)
		if len(entrants) == 0 {
			break
		}
		until, fits := b.budget.Begin(len(entrants))
		if !fits {
			return points, b.leaveOut(places[i:], len(entrants))
		}
		before := b.done
		var got []Point
		got, err = (&group{b: b, at: places[i], entrants: entrants, most: most, until: until}).measure(ctx)
		switch {
		case err == nil:
			points = append(points, got...)
			b.budget.End(len(entrants), true)
			b.notice()
			i++
		case errors.Is(err, ErrOverBudget):
			b.done = before
			return points, b.leaveOut(places[i:], len(entrants))
		case b.rep.misses(err):
			// The streams of the contender may still use the memory. Reopen all others without it.
			b.done = before
			if err = b.rig.CloseTo(mark); err == nil {
				entrants, err = b.openEntrants(who)
			}
		default:
			err = fmt.Errorf("%s: %w", places[i], err)
		}
	}
	return points, err
}

// leaveOut records places that did not fit the budget. It returns an error if nothing was measured.
func (b *bench) leaveOut(places []place, who int) error {
	for _, p := range places {
		b.rep.LeftOut = append(b.rep.LeftOut, p.String())
	}
	b.budget.Skip(len(places) * who)
	b.total -= len(places) * who
	if !b.budget.Measured() {
		return b.budget.TooShort()
	}
	return nil
}

// notice calls Options.Notice once if not everything will fit.
func (b *bench) notice() {
	if b.noticed || b.o.Notice == nil {
		return
	}
	b.noticed = true
	if text := b.budget.Notice("points"); text != "" {
		b.o.Notice(text)
	}
}

// openEntrants opens two movers for each contender. It skips contenders that are missing and
// records those that are unsupported.
func (b *bench) openEntrants(who []entry) ([]*entrant, error) {
	var all []*entrant
	for _, c := range who {
		if b.rep.missing(c.who) {
			continue
		}
		e := &entrant{who: c.who, form: c.form}
		for range 2 { // one mover for each direction
			m, err := b.openMover(c.who)
			switch {
			case errors.Is(err, errdefs.ErrNotSupported):
				b.rep.miss(c.who, err)
			case err != nil:
				return nil, fmt.Errorf("path %s: %w", c.who.Name(), err)
			default:
				e.movers = append(e.movers, m)
				continue
			}
			break
		}
		if len(e.movers) == 2 {
			all = append(all, e)
		}
	}
	return all, nil
}
