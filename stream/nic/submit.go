package nic

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// The reasons that completions carry.
const (
	ReasonLoopback  = "a NIC's loopback queue pairs"
	ReasonEmpty     = "nothing to copy"
	ReasonUnstarted = "ended before it started"
)

// op is a batch that is accepted and unresolved.
type op struct {
	stream   *Stream
	ticket   *stream.Ticket
	canceled atomic.Bool // no more of it may be posted
	bytes    int64
	pieces   int
	uses     uses

	next   *op  // guarded by Stream.mu
	posted bool // whole, or as much as ever will be; guarded by Stream.mu

	// Of whoever has the turn.
	batch   *mem.Batch
	needs   *manifest
	started time.Time
	met     int // dependencies known to have succeeded
	at      cursor
	open    int   // chains outstanding
	err     error // why it was ended early
	failed  error // how the NIC failed it: the first failure that is no flush, if there is one
	flushed bool  // failed is a flush
}

// Submit implements stream.Stream. It posts the first requests of the batch itself when nothing is before it; it waits for
// nothing except a place in the stream, and memory to be registered with Options.RegisterOnUse.
func (s *Stream) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	o, err := s.prepare(b)
	if err != nil {
		return nil, fmt.Errorf("submit batch: %w", err)
	}
	if err := s.enter(ctx, o); err != nil {
		s.giveBack(o.needs)
		return nil, fmt.Errorf("submit batch: %w", err)
	}
	s.work(1)
	return o.ticket, nil
}

// prepare checks b and takes hold of its memory.
func (s *Stream) prepare(b *mem.Batch) (*op, error) {
	if b == nil {
		return nil, fmt.Errorf("there is no batch: %w", errdefs.ErrInvalid)
	}
	for i, d := range b.After {
		if d == nil {
			return nil, fmt.Errorf("dependency %d is nil: %w", i, errdefs.ErrInvalid)
		}
	}
	o := &op{stream: s, batch: b, pieces: b.Pieces(), needs: s.manifest()}
	if err := s.load(o); err != nil {
		s.giveBack(o.needs)
		return nil, err
	}
	return o, nil
}

// enter takes a place in the stream and appends o.
func (s *Stream) enter(ctx context.Context, o *op) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case s.slots <- struct{}{}:
	default:
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
	defer s.mu.Unlock()
	s.lastID++
	o.ticket = stream.NewDrivenTicket(s.lastID, o)
	if s.tail == nil {
		s.head = o
	} else {
		s.tail.next = o
	}
	s.tail = o
	if s.next == nil {
		s.next = o
	}
	return nil
}

// refusal says why the stream takes nothing more.
func (s *Stream) refusal() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		s.said = true
		return fmt.Errorf("%w: %w", errdefs.ErrBroken, s.cause)
	}
	return fmt.Errorf("NIC stream: %w", errdefs.ErrClosed)
}

// manifest returns an empty one.
func (s *Stream) manifest() *manifest {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.spare)
	if n == 0 {
		return new(manifest)
	}
	m := s.spare[n-1]
	s.spare = s.spare[:n-1]
	return m
}

// giveBack releases m's memory.
func (s *Stream) giveBack(m *manifest) {
	m.release()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spare = append(s.spare, m)
}

// Cancel implements stream.Driver.
func (o *op) Cancel() {
	o.canceled.Store(true)
	o.stream.poke()
}

// pollBytes is how large a batch may be for whoever waits for it to poll: it takes about as long as being woken up.
const pollBytes = 512 << 10

// Poll implements stream.Driver.
func (o *op) Poll() bool {
	o.stream.work(1)
	return o.bytes <= pollBytes
}

// Watch implements stream.Driver. Completers watch in any case.
func (o *op) Watch() {}

// fail notes how the NIC failed o.
func (o *op) fail(err error) {
	if o.failed == nil || o.flushed {
		o.failed, o.flushed = err, false
	}
}

// verdict returns the error of o's ticket. What came after the failure that broke the stream has failed too, even if its
// own copies went well.
func (s *Stream) verdict(o *op) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := o.ticket.ID()
	switch {
	case s.cause != nil && s.causeID < id && (o.err == nil || o.failed != nil):
		s.said = true
		err := fmt.Errorf("batch %d: %w: %w", id, errdefs.ErrBroken, s.cause)
		if o.failed != nil && !o.flushed {
			err = errors.Join(err, o.failed)
		}
		return err
	case o.failed != nil:
		s.said = s.said || s.causeID == id // it tells the cause, which is of this batch
		return o.failed
	}
	return o.err
}
