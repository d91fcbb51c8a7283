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

// Run measures dev. It allocates twice PoolBytes of device memory and twice the longest transfer of pinned memory, and
// frees them before it returns. It fails with ErrCorrupt if wrong bytes arrived, with ErrInvalid if the budget is over before anything
// was measured, and with the context's cause if ctx ends: then the report, where there is one, is of what was measured until
// then, and says so.
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

// Interrupted is why a report is incomplete whose run was told to end.
const Interrupted = "interrupted"

// all measures everything.
func (b *bench) all(ctx context.Context) error {
	// A collection in the middle of a repetition takes processors away and slows down every pointer that is written, so
	// they are made between the points.
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

// bench is a run in progress.
type bench struct {
	dev    device.Device
	rig    *rig
	large  *large
	open   Opener
	o      *Options
	rng    *rand.Rand
	rep    *Report
	groups []place // between host and device, a cell's together

	done, total int     // steps announced, and to come in all
	budget      *Budget // its units are points
	noticed     bool
	near        *measure.Pool // of rows of nearRow bytes
	nearRow     int64
}

// plan counts what is to come, and shares the time among it.
func (b *bench) plan() {
	o := b.o
	units := b.gridUnits() + b.formUnits()
	if o.Peer != nil {
		units += len(o.peerPlaces()) * len(o.PeerContenders)
	}
	b.total = units
	b.budget = NewBudget(o.Budget, o.Began, o.clock, units)
}

func (b *bench) gridUnits() int { return len(b.groups) * len(b.o.Contenders) }

func (b *bench) formUnits() int {
	if !b.o.Forms {
		return 0
	}
	return len(b.o.formPlaces()) * len(formNames)
}

// host measures everything between host and device.
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
	if err := b.grid(ctx); err != nil {
		return err
	}
	if o.Forms {
		b.budget.Part(b.formUnits())
		if err := b.forms(ctx); err != nil {
			return err
		}
	}
	return nil
}

// grid measures the cells, those first that lie far apart.
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

// runs yields what has the same key in a row.
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

// inOrder sorts what was measured as it was asked for.
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

// setUp allocates the memory and opens what makes the large copy.
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

// pool returns all places on the near side of rows of so many bytes.
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

// entry is a contender with the form of its batches.
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

// measure measures groups of the same contenders, which keep their streams. A contender that turns out not to be supported
// is left out, with the reason in the report, and so are places that the time is too short for. What was measured before an error
// is returned with it.
func (b *bench) measure(ctx context.Context, places []place, who []entry, most int) (points []Point, err error) {
	if _, fits := b.budget.Begin(len(who)); !fits {
		return nil, b.leaveOut(places, len(who))
	}
	mark := b.rig.Mark()
	defer func() { err = errors.Join(err, b.rig.CloseTo(mark)) }()
	expected := len(who)
	entrants, err := b.enter(who)
	for i := 0; err == nil && i < len(places); {
		gone := (expected - len(entrants)) * (len(places) - i) // what is missing will measure nothing
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
			// Its streams may still use the memory; all begin anew without it.
			b.done = before
			if err = b.rig.CloseTo(mark); err == nil {
				entrants, err = b.enter(who)
			}
		default:
			err = fmt.Errorf("%s: %w", places[i], err)
		}
	}
	return points, err
}

// leaveOut names places that the time is too short for. It fails if nothing was measured at all.
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

// notice says once that not everything fits.
func (b *bench) notice() {
	if b.noticed || b.o.Notice == nil {
		return
	}
	b.noticed = true
	if text := b.budget.Notice("points"); text != "" {
		b.o.Notice(text)
	}
}

// enter opens two movers for each contender that is not known to be missing; one that is not supported becomes so.
func (b *bench) enter(who []entry) ([]*entrant, error) {
	var all []*entrant
	for _, c := range who {
		if b.rep.missing(c.who) {
			continue
		}
		e := &entrant{who: c.who, form: c.form}
		for range 2 { // one each way
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
