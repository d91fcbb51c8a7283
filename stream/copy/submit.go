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
	stream  *Stream
	carried atomic.Pointer[stream.Ticket] // of a NIC's stream, while that has the batch
	watched atomic.Bool                   // somebody waits without polling
	left    atomic.Int64                  // when it was left to a Ticket.Wait, since the stream was opened, if nobody has looked since; or zero
	told    int                           // page groups of which somebody was told that they have landed; of who completes
	planned bool                          // request and choice are what the planner was asked and answered
	origins mem.Holds                     // of memory of other processes that the batch touches
	// Used by whoever issues.
	held  bool  // the device was told to wait for somebody else's event before it
	paced bool  // a step after its first waited for its pace
	steps int32 // so far
	work  move.Batch

	lost    error // why paths were given up that were chosen first
	request plan.Request
	choice  plan.Choice // an option's, or how it travels after all
}

// Submit implements stream.Stream. It issues the batch itself when the stream is idle, so it may call the driver, but it
// waits for nothing except a place in the stream, and, before the first batch of a path, for that to get memory and queues.
func (s *Stream) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	t, err := s.submit(ctx, b)
	if err != nil {
		return nil, fmt.Errorf("submit batch: %w", err)
	}
	return t, nil
}

func (s *Stream) submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	o := &op{stream: s}
	t, err := s.accept(ctx, o, b)
	if err != nil {
		o.origins.Release()
		return nil, err
	}
	if o.choice.Path != stream.PathNone {
		s.last.Store(uint32(o.choice.Path))
	}
	return t, nil
}

// accept surveys b for o and submits it.
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

// reaches returns why the stream's device cannot address r, or nil, and holds it if it is another process's.
func (o *op) reaches(r *mem.Region) error {
	if err := o.stream.reaches(r); err != nil {
		return err
	}
	return o.origins.Add(r)
}

// live returns ErrLost if memory of other processes that the batch touches is lost by now. What was copied before it is asked, and
// found live, went where it should.
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

// WaitEvent implements stream.EventStream. It returns when the device has been told to wait.
func (s *Stream) WaitEvent(ctx context.Context, e device.Event) error {
	if e == nil {
		return fmt.Errorf("wait for event: there is none: %w", errdefs.ErrInvalid)
	}
	wait := func() error {
		s.waited = true
		return s.queue.Wait(e)
	}
	if err := s.life.Call(ctx, func() (bool, error) { return s.control(wait) }, nil); err != nil {
		return fmt.Errorf("wait for event: %w", err)
	}
	return nil
}

// control calls act, which uses the stream's queue, once what other queues of the stream hold comes before that. ok is false
// while the host has to wait for it.
func (s *Stream) control(act func() error) (ok bool, err error) {
	if _, ok = s.flight.admits(stream.PathNone); !ok {
		s.look()
		return false, nil
	}
	if err = s.switchTo(stream.PathNone); err == nil {
		err = act()
	}
	return true, err
}
