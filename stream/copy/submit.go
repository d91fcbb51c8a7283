package copy

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// op is an element of the backlog: a batch, or a control, which acts on the queue in its turn.
type op struct {
	stream   *Stream
	next     *op
	canceled atomic.Bool                   // no more of it may be issued
	carried  atomic.Pointer[stream.Ticket] // of a NIC's stream, while that has the batch
	watched  atomic.Bool                   // somebody waits without polling

	// Of a batch.
	ticket *stream.Ticket
	batch  *mem.Batch
	stats  survey
	path   stream.Path
	reason string
	lost   error // why paths were given up that were chosen first
	// What the planner was asked and answered, if it was.
	planned bool
	request plan.Request
	choice  plan.Choice
	summed  bool // the path fills the sums that the batch asks for

	// Of a control.
	control *control

	// Used by whoever issues.
	started  time.Time
	met      int // dependencies known to have succeeded
	at       cursor
	launches int   // kernels so far
	steps    int   // so far
	sent     int64 // bytes that steps before carried
	held     bool  // the device was told to wait for somebody else's event before it
	joint    bool  // a step of it carried other batches too
	behind   bool  // something was in flight when it started

	// err is why the issuer ended the batch early; written before the op's last item is sent.
	err error
	// deviceErr is why an event of the batch failed. The completer's alone.
	deviceErr error
}

// Submit implements stream.Stream. It issues the batch itself when the stream is idle, so it may call the driver, but it
// waits for nothing except a place in the stream, and, before the first batch of a path, for that to get memory and queues.
func (s *Stream) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	stats, err := s.survey(b)
	if err != nil {
		return nil, fmt.Errorf("submit batch: %w", err)
	}
	o := &op{stream: s, batch: b, stats: stats}
	o.at.batch = b
	err = s.choose(ctx, o)
	if err == nil {
		err = s.enter(ctx, o)
	}
	if err != nil {
		return nil, fmt.Errorf("submit batch: %w", err)
	}
	return o.ticket, nil
}

// enter takes a place in the stream, appends o to the backlog and issues its first step if nothing is before it.
func (s *Stream) enter(ctx context.Context, o *op) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	select {
	case s.slots <- struct{}{}:
	default:
		s.look()
		select {
		case s.slots <- struct{}{}:
		case <-s.down:
			return s.refusal()
		case <-ctx.Done():
			return fmt.Errorf("all %d places are taken: %w", cap(s.slots), context.Cause(ctx))
		}
	}

	s.mu.Lock()
	if s.closing || s.cause != nil {
		s.mu.Unlock()
		<-s.slots
		return s.refusal()
	}
	if o.control == nil {
		s.lastID++
		s.ahead.Add(int64(o.choice.Predicted))
		if o.path != stream.PathNone {
			s.last.Store(uint32(o.path))
		}
		o.ticket = stream.NewDrivenTicket(s.lastID, o)
	}
	if s.tail == nil {
		s.head = o
	} else {
		s.tail.next = o
	}
	s.tail = o
	first := s.head == o && !s.issuing
	s.mu.Unlock()

	if !first {
		s.poke()
		return nil
	}
	s.drain(1)
	return nil
}

// refusal says why the stream takes nothing more.
func (s *Stream) refusal() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		return fmt.Errorf("%w: %w", errdefs.ErrBroken, s.cause)
	}
	return fmt.Errorf("copy stream: %w", errdefs.ErrClosed)
}

func (s *Stream) cancel(o *op) {
	o.canceled.Store(true)
	if t := o.carried.Load(); t != nil {
		t.Cancel()
	}
	s.poke()
}

// poke makes the issuer look at the backlog.
func (s *Stream) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// control is a call on the queue that keeps its place among the batches.
type control struct {
	wait device.Event // nil: record
	// done is closed when event and err are valid.
	done  chan struct{}
	event device.Event
	err   error
	// abandoned: nobody waits any more. Guarded by Stream.mu.
	abandoned bool
}

// Record implements stream.EventStream. The caller closes the event.
func (s *Stream) Record(ctx context.Context) (device.Event, error) {
	c := &control{done: make(chan struct{})}
	if err := s.runControl(ctx, c); err != nil {
		return nil, fmt.Errorf("record event: %w", err)
	}
	return c.event, nil
}

// WaitEvent implements stream.EventStream. It returns when the device has been told to wait.
func (s *Stream) WaitEvent(ctx context.Context, e device.Event) error {
	if e == nil {
		return fmt.Errorf("wait for event: there is none: %w", errdefs.ErrInvalid)
	}
	c := &control{wait: e, done: make(chan struct{})}
	if err := s.runControl(ctx, c); err != nil {
		return fmt.Errorf("wait for event: %w", err)
	}
	return nil
}

func (s *Stream) runControl(ctx context.Context, c *control) error {
	if err := s.enter(ctx, &op{control: c}); err != nil {
		return err
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-c.done: // it was faster
		return c.err
	default:
		c.abandoned = true
		return context.Cause(ctx)
	}
}
