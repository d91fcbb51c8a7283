package copy

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// MinCarried is how many batches a Carrier's streams have to have places for.
const MinCarried = maxCalls

// Carrier is what copy streams have of RDMA NICs: the path nic, or nic-soft. Several streams use one at the same time, and all
// those that have other paths leave it once it has failed one of them. The fields stay as they are once a stream has it.
type Carrier struct {
	// Path is what the copies are reported as: stream.PathNIC or stream.PathNICSoft.
	Path stream.Path
	// Open opens an ordered stream over the NICs, when a batch is first to travel by the path. It has places for MinCarried
	// batches, so that Submit does not block, and bounds its own waits: no ticket stays unresolved because a NIC is silent.
	// The copy stream closes it.
	Open func() (stream.Stream, error)
	// Reaches reports whether the NICs may copy from and to r. Memory may cease to be within reach while no batch uses it.
	Reaches func(r *mem.Region) bool

	broken atomic.Pointer[error]
}

func (c *Carrier) validate(bad func(format string, args ...any)) {
	if c.Path.MovedBy() != stream.MovedByNIC {
		bad("path %s is none of a NIC's", c.Path)
	}
	if c.Open == nil || c.Reaches == nil {
		bad("a NIC that cannot be opened, or not be asked what it reaches")
	}
}

// Err returns why the NICs failed a batch or took none, or nil.
func (c *Carrier) Err() error {
	if err := c.broken.Load(); err != nil {
		return *err
	}
	return nil
}

// fail notes why the NICs are of no use any more. The first cause stays.
func (c *Carrier) fail(err error) { c.broken.CompareAndSwap(nil, &err) }

// carried is the path of a Carrier. It hands whole batches to a stream over the NICs, which keeps their order among
// themselves. Between that stream and the queue of this one nobody does but the host: a batch of another path is issued
// when all that NICs carry has landed, and the other way round (Stream.mayFollow).
//
// A batch that the NICs fail breaks the stream, as any failure of the device does. One that they do not take, since they have
// failed before or do not reach its memory any more, is issued by copy engine, and the path given up.
type carried struct {
	s    *Stream
	by   *Carrier
	over stream.Stream // nil until it is prepared, and when it is closed
}

func (c *carried) available() error { return nil }

// forced reports whether the stream has no other path.
func (c *carried) forced() bool { return c.s.opts.Path == c.by.Path }

// takes: within host or device memory a NIC has nothing to gain.
func (c *carried) takes(v *survey) bool { return c.forced() || v.ways&^(wayH2D|wayD2H) == 0 }

// reaches implements picky. Neighbours are mostly of the same region, so each is asked for once.
func (c *carried) reaches(b *mem.Batch) bool {
	var dst, src *mem.Region
	for i := range b.Dst {
		if b.Dst[i].Len == 0 {
			continue
		}
		if r := b.Dst[i].Region; r != dst {
			if dst = r; !c.by.Reaches(r) {
				return false
			}
		}
		if r := b.Src[i].Region; r != src {
			if src = r; !c.by.Reaches(r) {
				return false
			}
		}
	}
	if b.Paged == nil {
		return true
	}
	for i := range b.Paged.Groups {
		g := &b.Paged.Groups[i]
		if len(g.Pairs) == 0 {
			continue
		}
		if !c.by.Reaches(g.Slots.Region) {
			return false
		}
		var plane *mem.Region
		for j := range g.Planes {
			if r := g.Planes[j].Region; r != plane {
				if plane = r; !c.by.Reaches(r) {
					return false
				}
			}
		}
	}
	return true
}

func (c *carried) calls() int            { return 1 }
func (c *carried) room(*op) (span, bool) { return span{}, true }

// prepare opens the stream over the NICs.
func (c *carried) prepare() error {
	if err := c.by.Err(); err != nil && !c.forced() {
		return fmt.Errorf("it failed before: %w", err)
	}
	over, err := c.by.Open()
	if err == nil {
		c.over = over
	}
	return err
}

// step hands the batch over.
func (c *carried) step(o *op, _ span, it *item) (done bool, err error) {
	if o.held && o.steps == 0 {
		// The stream's queue was told to wait for somebody else's event, of which a NIC knows nothing. The event of this
		// empty step comes after that, and mayFollow holds the next step until it is done.
		return false, nil
	}
	if err := c.by.Err(); err != nil && !c.forced() {
		return c.refused(o, fmt.Errorf("it failed: %w", err))
	}
	// It does not block: as many batches as are in flight at most have places, see maxCalls.
	t, err := c.over.Submit(context.Background(), o.at.batch)
	if err != nil {
		return c.refused(o, err)
	}
	o.carried.Store(t)
	if o.Canceled() { // by somebody who did not see the ticket
		t.Cancel()
	}
	it.apart, it.calls, it.bytes, it.event = true, 1, o.stats.bytes, &arrival{op: o, by: c.by, ticket: t}
	return true, nil
}

// refused has o issued by copy engine, which its next step does: NICs that take no batch have not touched its memory. It is
// an error where the path is forced.
func (c *carried) refused(o *op, err error) (done bool, _ error) {
	if c.forced() {
		return true, err
	}
	c.by.fail(err)
	if plan.Paths(c.s.able.Load()).Has(c.by.Path) { // once
		o.lost = errors.Join(o.lost, fmt.Errorf("path %s: %w", c.by.Path, err))
		c.s.giveUp(c.by.Path)
	}
	o.path, o.reason, o.planned = stream.PathCopyEngine, ReasonRefused, false
	return false, nil
}

// turn has nothing to do: the host holds what comes next until all is done.
func (c *carried) turn() error { return nil }

func (c *carried) quiesce(ctx context.Context) (failed, err error) {
	if c.over == nil {
		return nil, nil
	}
	if failed, err = closeQueue(ctx, c.over); err == nil {
		c.over = nil
	}
	return failed, err
}

func (c *carried) free() error { return nil }

// arrival is the event of a batch that NICs have: done when their ticket has resolved. It implements device.Event.
type arrival struct {
	op     *op
	by     *Carrier
	ticket *stream.Ticket
}

var _ device.Event = (*arrival)(nil)

// Done implements device.Event. A ticket that has resolved proves that nothing touches the memory any more, whatever it says.
func (a *arrival) Done() (bool, error) {
	if !a.ticket.Poll() {
		return false, nil
	}
	return true, a.verdict()
}

// Wait implements device.Event.
func (a *arrival) Wait(ctx context.Context) error {
	if err := a.ticket.Wait(ctx); err != nil && !a.ticket.Poll() {
		return err
	}
	return a.verdict()
}

// Close implements device.Event.
func (a *arrival) Close() {}

// verdict returns why the NICs failed the batch. That it was cancelled, as was asked for, ends the batch and is no failure of
// the stream. Of whoever completes.
func (a *arrival) verdict() error {
	err := a.ticket.Err()
	switch {
	case err == nil:
		return nil
	case a.op.Canceled() && errors.Is(err, errdefs.ErrCanceled) && !errors.Is(err, errdefs.ErrBroken):
		a.op.End(a.op.failure(err))
		return nil
	}
	a.by.fail(err)
	return err
}
