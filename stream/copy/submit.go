package copy

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/stream/ordered"
)

// op is a batch that is accepted and unresolved.
type op struct {
	ordered.Batch
	stream  *Stream
	carried atomic.Pointer[stream.Ticket] // of a NIC's stream, while that has the batch
	watched atomic.Bool                   // somebody waits without polling

	path    stream.Path
	summed  bool // the path fills the sums that the batch asks for
	planned bool // request and choice are what the planner was asked and answered
	// Used by whoever issues.
	held     bool   // the device was told to wait for somebody else's event before it
	behind   bool   // something was in flight when it started
	launches int32  // kernels so far
	steps    int32  // so far
	sent     int64  // bytes that steps before carried
	at       cursor // which has the batch itself

	stats   survey
	reason  string
	lost    error // why paths were given up that were chosen first
	request plan.Request
	choice  plan.Choice
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
	stats, err := s.survey(b)
	if err != nil {
		return nil, err
	}
	o := &op{stream: s, at: cursor{batch: b}, stats: stats}
	if err := s.choose(ctx, o); err != nil {
		return nil, err
	}
	s.ahead.Add(int64(o.choice.Predicted))
	t, err := s.life.Submit(ctx, o, &o.Batch, b.After)
	if err != nil {
		s.ahead.Add(-int64(o.choice.Predicted))
		return nil, err
	}
	if o.path != stream.PathNone {
		s.last.Store(uint32(o.path))
	}
	return t, nil
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
	if err := s.life.Call(ctx, func() (bool, error) { return s.inTurn(record) }, func() { e.Close() }); err != nil {
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
	if err := s.life.Call(ctx, func() (bool, error) { return s.inTurn(wait) }, nil); err != nil {
		return fmt.Errorf("wait for event: %w", err)
	}
	return nil
}

// inTurn calls act, which uses the stream's queue, once what other queues of the stream hold comes before that. ok is false
// while the host has to wait for it.
func (s *Stream) inTurn(act func() error) (ok bool, err error) {
	s.mu.Lock()
	ok = s.mayFollow(stream.PathNone)
	s.mu.Unlock()
	if !ok {
		s.look()
		return false, nil
	}
	if err = s.turnTo(stream.PathNone); err == nil {
		err = act()
	}
	return true, err
}
