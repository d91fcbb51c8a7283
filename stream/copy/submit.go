package copy

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/describe"
	"github.com/kvlane/kvlane/stream/copy/move"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/stream/ordered"
)

// op is a batch that is accepted and unresolved.
type op struct {
	ordered.Batch
	stream         *Stream
	carried        atomic.Pointer[stream.Ticket] // ticket of the NIC's stream
	watched        atomic.Bool                   // a goroutine waits without polling
	handOffAt      atomic.Int64                  // time of push for a batch that is left to Ticket.Wait; zero after a poll
	reportedGroups int                           // guarded by completing
	planned        bool                          // choice was made by the planner for request
	origins        mem.Holds                     // memory of other processes that the batch uses
	// Only the issuing goroutine uses the following fields.
	afterEvent bool  // the device waits for an event of another queue before the batch
	paced      bool  // a step after the first waited for the pace
	steps      int32 // number of issued steps
	work       move.Batch

	givenUp error // why other paths that were chosen first could not be used
	request plan.Request
	choice  plan.Choice // chosen by the planner, or the forced path
}

// Submit implements stream.Stream. If the stream is idle it issues the batch, and may call the
// driver. It blocks only until the stream accepts the batch, and while a path is prepared for its
// first batch.
func (s *Stream) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	o := &op{stream: s}
	t, err := s.accept(ctx, o, b)
	if err != nil {
		o.origins.Release()
		return nil, fmt.Errorf("submit batch: %w", err)
	}
	if o.choice.Path != stream.PathNone {
		s.last.Store(uint32(o.choice.Path))
	}
	return t, nil
}

// accept surveys b and submits it as o.
func (s *Stream) accept(ctx context.Context, o *op, b *mem.Batch) (*stream.Ticket, error) {
	shape, err := describe.Survey(b, o.reaches)
	if err != nil {
		return nil, err
	}
	o.work = move.Batch{Shape: shape, At: describe.Cursor{Batch: b}}
	if err := s.choose(ctx, o); err != nil {
		return nil, err
	}
	s.ahead.Add(int64(o.choice.Predicted))
	t, err := s.life.Submit(ctx, o, &o.Batch, b.After)
	if err != nil {
		s.ahead.Add(-int64(o.choice.Predicted))
	}
	return t, err
}

// reaches returns the reason why the stream's device cannot address r, or nil. It acquires memory
// of other processes until the batch resolves.
func (o *op) reaches(r *mem.Region) error {
	if err := o.stream.reaches(r); err != nil {
		return err
	}
	return o.origins.Add(r)
}

// live returns ErrLost if the batch uses lost memory of another process. Bytes that were copied
// before a successful check are in place.
func (o *op) live() error {
	if err := o.origins.Check(); err != nil {
		return o.failure(err)
	}
	return nil
}

// Cancel implements stream.Driver.
func (o *op) Cancel() {
	o.Batch.Cancel()
	if t := o.carried.Load(); t != nil {
		t.Cancel()
	}
}

// Record implements stream.EventStream. The caller closes the event.
func (s *Stream) Record(ctx context.Context) (device.Event, error) {
	var e device.Event
	record := func() (err error) {
		e, err = s.queue.Record()
		return err
	}
	if err := s.life.Call(ctx, func() (bool, error) { return s.control(record) }, func() { e.Close() }); err != nil {
		return nil, fmt.Errorf("record event: %w", err)
	}
	return e, nil
}

// WaitEvent implements stream.EventStream. It returns after the queue was made to wait for e.
func (s *Stream) WaitEvent(ctx context.Context, e device.Event) error {
	if e == nil {
		return fmt.Errorf("wait for event: the event is nil: %w", errdefs.ErrInvalid)
	}
	wait := func() error {
		s.waitedForEvent = true
		return s.queue.Wait(e)
	}
	if err := s.life.Call(ctx, func() (bool, error) { return s.control(wait) }, nil); err != nil {
		return fmt.Errorf("wait for event: %w", err)
	}
	return nil
}

// control calls act, which uses the stream's queue, after ordering the queue after the stream's
// other queues. ok is false while the host must first wait for those.
func (s *Stream) control(act func() error) (ok bool, err error) {
	if _, ok = s.inFlight.admits(stream.PathNone); !ok {
		s.wakeCompleter()
		return false, nil
	}
	if err = s.switchTo(stream.PathNone); err == nil {
		err = act()
	}
	return true, err
}
