package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma/rail"
)

// serveQueue has a queue pair for as long as the connection lasts.
func (e *Engine) serveQueue(c *servedConn) error {
	f, n, err := readFrameHead(c.r)
	if err != nil {
		return err
	}
	if n > controlBuffer {
		return fmt.Errorf("request for a queue pair of %d bytes, of %d at most: %w", n, controlBuffer, errdefs.ErrInvalid)
	}
	if err := f.readPayload(c.r, n); err != nil {
		return err
	}
	c.slot.Busy() // for as long as the connection lasts
	if f.call != callConnect {
		return fmt.Errorf("request of type %d on a connection for a queue pair: %w", f.call, errdefs.ErrInvalid)
	}
	q, err := e.connectQueue(c, &f)
	if err != nil {
		e.counters.refused.Add(1)
		return (&frame{call: f.call, status: statusOf(err), payload: textOf(err)}).write(c)
	}
	defer closeQueue(q) // nothing of it touches memory when the connection is gone
	out, err := newFrame(f.call, connectReply{To: q.Endpoint()})
	if err != nil {
		return err
	}
	out.status = statusOK
	if err := out.write(c); err != nil {
		return err
	}
	if err := c.waitByte(); err != nil {
		return err // it was closed, mostly
	}
	return fmt.Errorf("something came behind a queue pair: %w", errdefs.ErrInvalid)
}

// connectQueue makes a queue pair that reaches the memory of a segment.
func (e *Engine) connectQueue(c *servedConn, f *frame) (*rail.Queue, error) {
	var r connectRequest
	if err := f.decode(&r); err != nil {
		return nil, err
	}
	if err := r.From.Validate(); err != nil {
		return nil, err
	}
	e.mu.Lock()
	s := e.numbers[r.Segment]
	e.mu.Unlock()
	if s == nil {
		return nil, fmt.Errorf("segment number %d: %w", r.Segment, errdefs.ErrNotFound)
	}
	d := s.domain.Load()
	if d == nil {
		return nil, fmt.Errorf("segment %q has no NICs: %w", s.name, errdefs.ErrNotSupported)
	}
	// Bind first: closing the segment ends only bound connections.
	if err := e.served.bind(c, s); err != nil {
		return nil, err
	}
	q, err := d.Open(r.NIC)
	if err != nil {
		return nil, err
	}
	if err := q.Connect(r.From); err != nil {
		d.Leave(q)
		return nil, err
	}
	return q, nil
}

// bind makes c a connection for a queue pair of a segment. ErrBusy if half of all connections are,
// so that others find a slot.
func (s *served) bind(c *servedConn, to *Segment) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	bound := 0
	for other := range s.all {
		if other.segment != nil {
			bound++
		}
	}
	if bound >= s.queues {
		return fmt.Errorf("%d queue pairs are connected: %w", bound, errdefs.ErrBusy)
	}
	c.segment = to
	return nil
}

// endOf ends the queue pairs of a segment, and returns when nothing of them touches memory any more.
func (s *served) endOf(ctx context.Context, to *Segment) error {
	s.mu.Lock()
	var all []*servedConn
	for c := range s.all {
		if c.segment == to {
			all = append(all, c)
		}
	}
	s.mu.Unlock()
	for _, c := range all {
		c.end()
	}
	for _, c := range all {
		select {
		case <-c.done:
		case <-ctx.Done():
			return fmt.Errorf("end %d queue pairs: %w", len(all), context.Cause(ctx))
		}
	}
	return nil
}

// offer has NICs reach a buffer's region, if there are any, or says in its description why they do not.
func (s *Segment) offer(b *buffer) error {
	why := s.pin(b)
	if why == nil {
		return nil
	}
	if err := s.e.handleRefusal(why); err != nil {
		return err
	}
	b.desc.Refused = rail.Reason(why)
	return nil
}

// pin registers a buffer's region with the NICs for those whose queue pairs are of this segment. Another process's memory is not pinned: it could
// not take it back.
func (s *Segment) pin(b *buffer) (err error) {
	if s.e.o.NICs == nil || b.region.Origin() != nil {
		return nil
	}
	d := s.domain.Load()
	if d == nil {
		if d, err = s.e.o.NICs.Serve(); err != nil {
			return err
		}
		s.domain.Store(d)
	}
	b.desc.Keys, err = d.Register(b.region, b.desc.Offset)
	return err
}

// withdraw takes a buffer's region back from the NICs.
func (s *Segment) withdraw(ctx context.Context, b *buffer) error {
	d := s.domain.Load()
	if d == nil {
		return nil
	}
	return d.Unregister(ctx, b.region)
}

// disconnect ends the segment's queue pairs, and its domain. It may be called again.
func (s *Segment) disconnect(ctx context.Context) error {
	d := s.domain.Load()
	if d == nil {
		return nil
	}
	for {
		if err := s.e.served.endOf(ctx, s); err != nil {
			return err
		}
		if err := d.Close(); err == nil || !errors.Is(err, errdefs.ErrBusy) || !pause(ctx, time.Millisecond) {
			return err
		}
	}
}
