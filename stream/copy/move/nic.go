package move

import (
	"context"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/describe"
)

// NIC is the path nic, or nic-soft. It hands whole batches to a stream over the NICs, which keeps their order among themselves.
// Between that stream and the queue of this one nobody does but the host.
type NIC struct {
	forced  bool
	open    func() (stream.Stream, error)
	reaches func(*mem.Region) bool
	over    stream.Stream // nil until it is prepared, and when it is closed
}

var _ Owner = (*NIC)(nil)

// NewNIC makes the path: open opens a stream with places for MaxCalls batches, and reaches says of which memory NICs may copy.
func NewNIC(env *Env, open func() (stream.Stream, error), reaches func(*mem.Region) bool) *NIC {
	return &NIC{forced: env.Forced, open: open, reaches: reaches}
}

// Supports implements Mover: within host or device memory a NIC has nothing to gain.
func (n *NIC) Supports(b *Batch) (ok, sums bool) {
	crosses := b.Ways&^(describe.H2D|describe.D2H) == 0
	return (n.forced || crosses) && describe.Reached(b.At.Batch, n.reaches), false
}

// Room implements Mover.
func (n *NIC) Room(_ *Batch, f Flight) bool { return f.admits(1) }

// Prepare opens the stream over the NICs.
func (n *NIC) Prepare() error {
	over, err := n.open()
	if err == nil {
		n.over = over
	}
	return err
}

// Step hands the batch over. It does not block: as many batches as are in flight at most have places.
func (n *NIC) Step(b *Batch, st *Step) (done bool, err error) {
	t, err := n.over.Submit(context.Background(), b.At.Batch)
	if err != nil {
		return true, &Refused{err}
	}
	st.Calls, st.Bytes, st.Event = 1, b.Bytes, Carried{t}
	return true, nil
}

// Quiesce implements Owner.
func (n *NIC) Quiesce(ctx context.Context) (failed, err error) {
	if n.over == nil {
		return nil, nil
	}
	if failed, err = CloseQueue(ctx, n.over); err == nil {
		n.over = nil
	}
	return failed, err
}

// Free implements Owner.
func (n *NIC) Free() error { return nil }

// Carried is the event of a batch that NICs have: done when their ticket has resolved.
type Carried struct{ Ticket *stream.Ticket }

var _ device.Event = Carried{}

// Done implements device.Event. A ticket that has resolved proves that nothing touches the memory any more, whatever it says.
func (c Carried) Done() (bool, error) {
	if !c.Ticket.Poll() {
		return false, nil
	}
	return true, c.Ticket.Err()
}

// Wait implements device.Event.
func (c Carried) Wait(ctx context.Context) error { return c.Ticket.Wait(ctx) }

// Close implements device.Event.
func (c Carried) Close() {}
