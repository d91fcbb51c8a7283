package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

// Run measures dev. It allocates twice PoolBytes of device memory and twice the longest transfer of pinned memory, and
// frees them before it returns. It fails with ErrCorrupt if wrong bytes arrived, and with the context's cause if ctx ends.
func Run(ctx context.Context, dev device.Device, open Opener, o Options) (*Report, error) {
	o = o.withDefaults(dev.Info())
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("benchmark: %w", err)
	}
	rep := newReport(dev.Info(), &o)
	b := &bench{dev: dev, open: open, o: &o, rng: rand.New(rand.NewPCG(o.Seed, 0)), rep: rep, groups: o.groups()}
	b.plan()
	// A collection in the middle of a repetition takes processors away and slows down every pointer that is written, so
	// they are made between the points.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	if err := b.host(ctx); err != nil {
		return nil, fmt.Errorf("benchmark: %w", err)
	}
	if o.Peer != nil {
		if err := b.peers(ctx); err != nil {
			return nil, fmt.Errorf("benchmark between devices: %w", err)
		}
	}
	rep.Machine.Finish()
	return rep, nil
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

	done, total int           // steps announced, and to come in all
	left        int           // points to come, which share the time until deadline
	deadline    time.Time     // of the points
	near        *measure.Pool // of rows of nearRow bytes
	nearRow     int64
}

// plan counts what is to come.
func (b *bench) plan() {
	o := b.o
	b.left = len(b.groups) * len(o.Contenders)
	if o.Forms {
		b.left += len(o.formPlaces()) * len(formNames)
	}
	b.total = b.left
	if o.Product != nil {
		b.total += len(o.BesideContenders) * len(besideDirections)
	}
	if o.Peer != nil {
		b.total += len(o.peerPlaces()) * len(o.PeerContenders)
	}
}

// host measures everything between host and device.
func (b *bench) host(ctx context.Context) (err error) {
	o := b.o
	if err := b.setUp(ctx, nil, o.PoolBytes, o.hostBytes(), o.largest(), o.ReferenceBytes); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.rig.Close()) }()
	b.deadline = time.Now().Add(o.Budget)
	for len(b.groups) > 0 {
		n := 1
		for n < len(b.groups) && b.groups[n].Cell == b.groups[0].Cell {
			n++
		}
		points, err := b.measure(ctx, b.groups[:n], entries(o.Contenders, o.Form), o.BatchBlocks)
		if err != nil {
			return err
		}
		b.rep.add(points)
		b.groups = b.groups[n:]
	}
	if o.Forms {
		if err := b.forms(ctx); err != nil {
			return err
		}
	}
	if o.Product != nil {
		if err := b.beside(ctx); err != nil {
			return fmt.Errorf("beside %s: %w", o.Product.Describe(), err)
		}
	}
	b.rep.Reference = Reference{
		ToDevice: b.large.rates(ToDevice), ToHost: b.large.rates(ToHost), Both: b.large.rates(Both),
	}
	return nil
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
// is left out, with the reason in the report.
func (b *bench) measure(ctx context.Context, places []place, who []entry, most int) (points []Point, err error) {
	mark := b.rig.Mark()
	defer func() { err = errors.Join(err, b.rig.CloseTo(mark)) }()
	expected := len(who)
	entrants, err := b.enter(who)
	for i := 0; err == nil && i < len(places); {
		gone := (expected - len(entrants)) * (len(places) - i) // what is missing will measure nothing
		b.left, b.total, expected = b.left-gone, b.total-gone, len(entrants)
		if len(entrants) == 0 {
			break
		}
		before := b.done
		var got []Point
		got, err = (&group{b: b, at: places[i], entrants: entrants, most: most}).measure(ctx)
		switch {
		case err == nil:
			points = append(points, got...)
			b.left -= len(entrants)
			i++
		case b.rep.misses(err):
			// Its streams may still use the memory; all begin anew without it.
			b.done = before
			if err = b.rig.CloseTo(mark); err == nil {
				entrants, err = b.enter(who)
			}
		default:
			at := places[i]
			err = fmt.Errorf("%d x %s, %s, %s: %w", at.Count, BytesText(at.Size), at.dir, at.layout, err)
		}
	}
	return points, err
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

// withStream opens a stream for use and closes it again, waiting for what use left behind. A stream that does not close stays
// in the rig's list, and keeps it from freeing the memory.
func (b *bench) withStream(c Contender, use func(stream.Stream) error) (err error) {
	mark := b.rig.Mark()
	defer func() { err = errors.Join(err, b.rig.CloseTo(mark)) }()
	s, err := b.open(c)
	if err != nil {
		return err
	}
	b.rig.OnClose(s.Close)
	return use(s)
}
