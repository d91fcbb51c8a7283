package faulty

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// The operations that the plan counts.
const (
	OpSubmit = "submit"
	OpTicket = "ticket"
)

// Options say what the decorator needs to know of the stream below.
type Options struct {
	// Unordered: the stream below completes ticket by ticket, and so does the decorator.
	Unordered bool
	// Device is used to corrupt bytes that no CPU can reach. Without it, corrupting those fails the ticket.
	Device device.Device
	// Clock for delays. Default: the real clock.
	Clock clockwork.Clock
}

// Stream is the decorator. Safe for concurrent use.
type Stream struct {
	inner stream.Stream
	plan  *fault.Plan
	o     Options

	tickets sync.WaitGroup // one goroutine each

	mu     sync.Mutex
	closed bool
	cause  error                    // an injected failure that broke the stream
	ends   map[uint64]chan struct{} // closed when the ticket of that number has resolved; ordered streams only
}

var _ stream.Stream = (*Stream)(nil)

// New decorates inner, which the decorator owns from now on.
func New(inner stream.Stream, plan *fault.Plan, o Options) *Stream {
	if o.Clock == nil {
		o.Clock = clockwork.NewRealClock()
	}
	first := make(chan struct{})
	close(first)
	return &Stream{inner: inner, plan: plan, o: o, ends: map[uint64]chan struct{}{0: first}}
}

// Submit implements stream.Stream.
func (s *Stream) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	if f, hit := s.plan.Hit(OpSubmit); hit {
		if err := s.suffer(ctx, &f); err != nil {
			return nil, fmt.Errorf("submit batch: %w", err)
		}
	}
	s.mu.Lock()
	cause := s.cause
	if s.closed || cause != nil {
		s.mu.Unlock()
		if cause != nil {
			return nil, fmt.Errorf("submit batch: %w: %w", errdefs.ErrBroken, cause)
		}
		return nil, fmt.Errorf("submit batch: %w", errdefs.ErrClosed)
	}
	s.tickets.Add(1) // before Close can wait
	s.mu.Unlock()
	below, err := s.inner.Submit(ctx, b)
	if err != nil {
		s.tickets.Done()
		return nil, err
	}
	t := stream.NewTicket(below.ID(), below.Cancel)
	go func() {
		defer s.tickets.Done()
		s.follow(b, below, t)
	}()
	return t, nil
}

// follow resolves t when and as below has resolved and the plan says. There is no deadline: the ticket has none.
func (s *Stream) follow(b *mem.Batch, below, t *stream.Ticket) {
	<-below.Done()
	if !s.o.Unordered {
		<-s.end(t.ID() - 1)
		defer s.resolved(t.ID())
	}
	c, err := below.Completion(), below.Err()
	if err == nil {
		err = s.spoil(b, t.ID())
	}
	if err != nil {
		c.Bytes, c.Pieces = 0, 0
	}
	t.Resolve(c, err)
}

// spoil does to a batch that went well what the plan says, and returns the ticket's error.
func (s *Stream) spoil(b *mem.Batch, id uint64) error {
	s.mu.Lock()
	cause := s.cause
	s.mu.Unlock()
	if cause != nil && !s.o.Unordered {
		return fmt.Errorf("batch %d: %w: %w", id, errdefs.ErrBroken, cause)
	}
	f, hit := s.plan.Hit(OpTicket)
	if !hit {
		return nil
	}
	err := s.suffer(context.Background(), &f)
	if err == nil && f.Action == fault.Corrupt {
		err = s.corrupt(b, f.Rand)
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("batch %d: %w", id, err)
	if !s.o.Unordered {
		s.mu.Lock()
		s.cause = err
		s.mu.Unlock()
	}
	return err
}

// suffer does what every operation suffers in the same way.
func (s *Stream) suffer(ctx context.Context, f *fault.Fault) error {
	switch f.Action {
	case fault.Fail, fault.Partial, fault.Crash:
		return f.Err
	case fault.Stall:
		return f.Wait(ctx)
	case fault.Delay:
		timer := s.o.Clock.NewTimer(f.Delay)
		defer timer.Stop()
		select {
		case <-timer.Chan():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	case fault.Corrupt:
	}
	return nil
}

// end returns the channel that closes when ticket id has resolved.
func (s *Stream) end(id uint64) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.ends[id]
	if c == nil {
		c = make(chan struct{})
		s.ends[id] = c
	}
	return c
}

func (s *Stream) resolved(id uint64) {
	close(s.end(id))
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ends, id-1) // whose only reader was this ticket
}

// Close implements stream.Stream. Stalled tickets hold it up until the plan releases them.
func (s *Stream) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	if err := s.inner.Close(ctx); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() { // ends with the tickets, which a later Close waits for
		s.tickets.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close stream: tickets are held back: %w", context.Cause(ctx))
	}
}

// corrupt flips a bit of one of the bytes that b brought.
func (s *Stream) corrupt(b *mem.Batch, at uint64) error {
	n := b.Bytes()
	if n == 0 {
		return nil
	}
	off := int64(at % uint64(n))
	for dst := range b.Extents() {
		if off < dst.Len {
			return s.flip(dst.Sub(off, 1))
		}
		off -= dst.Len
	}
	return nil
}

func (s *Stream) flip(e mem.Extent) (err error) {
	if v := e.Bytes(); v != nil {
		v[0] ^= 1
		return nil
	}
	if s.o.Device == nil {
		return fmt.Errorf("corrupt a byte of %s: no device is known: %w", e.Region, errdefs.ErrNotSupported)
	}
	ctx := context.Background() // the queue has nothing else to do
	q, err := s.o.Device.OpenQueue(device.QueueOptions{})
	if err != nil {
		return fmt.Errorf("corrupt a byte: %w", err)
	}
	defer func() { err = errors.Join(err, q.Close(ctx)) }()
	r, err := s.o.Device.AllocHost(1)
	if err != nil {
		return fmt.Errorf("corrupt a byte: %w", err)
	}
	defer func() { err = errors.Join(err, s.o.Device.Free(r)) }()
	if err := copyNow(ctx, q, mem.All(r), e); err != nil {
		return err
	}
	r.Bytes()[0] ^= 1
	return copyNow(ctx, q, e, mem.All(r))
}

func copyNow(ctx context.Context, q device.Queue, dst, src mem.Extent) error {
	if err := q.Copy(dst, src); err != nil {
		return fmt.Errorf("corrupt a byte: %w", err)
	}
	e, err := q.Record()
	if err != nil {
		return fmt.Errorf("corrupt a byte: %w", err)
	}
	defer e.Close()
	return e.Wait(ctx)
}
