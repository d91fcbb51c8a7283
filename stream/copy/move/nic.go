package move

import (
	"context"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/describe"
)

// NIC is the path nic or nic-soft. It submits whole batches to a stream over the NICs, which keeps
// their order. Only the host can order that stream relative to the queue of the copy stream.
type NIC struct {
	forced  bool
	open    func() (stream.Stream, error)
	reaches func(*mem.Region) bool
	over    stream.Stream // nil before Prepare and after Quiesce
}

var _ Owner = (*NIC)(nil)

// NewNIC returns the path. open opens a stream that accepts MaxCalls batches without blocking.
// reaches reports whether NICs can access a region.
func NewNIC(env *Env, open func() (stream.Stream, error), reaches func(*mem.Region) bool) *NIC {
	return &NIC{forced: env.Forced, open: open, reaches: reaches}
}

// Supports implements Mover. A NIC has no advantage within host or device memory.
func (n *NIC) Supports(b *Batch) (ok, sums bool) {
	crosses := b.Ways&^(describe.H2D|describe.D2H) == 0
	return (n.forced || crosses) && describe.Reached(b.At.Batch, n.reaches), false
}

// Fits implements Mover.
func (n *NIC) Fits(_ *Batch, f InFlight) bool { return f.admits(1) }

// Prepare opens the stream over the NICs.
func (n *NIC) Prepare() error {
	over, err := n.open()
	if err == nil {
		n.over = over
	}
	return err
}

// Step submits the batch. It does not block, because the stream accepts the maximum number of
// batches in flight.
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

// Carried is the event of a batch that NICs copy. It is done when the ticket has resolved.
type Carried struct{ Ticket *stream.Ticket }

var _ device.Event = Carried{}

// Done implements device.Event. After a ticket has resolved, the memory is no longer accessed, even
// if the batch failed.
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
