package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma/rail"
)

// serveQueue serves a queue pair until the connection ends.
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
	c.slot.Busy() // the connection counts as busy until it ends
	if f.call != callConnect {
		return fmt.Errorf("request of type %d on a connection for a queue pair: %w", f.call, errdefs.ErrInvalid)
	}
	q, err := e.connectQueue(c, &f)
	if err != nil {
		e.counters.refused.Add(1)
		return (&frame{call: f.call, status: statusOf(err), payload: textOf(err)}).write(c)
	}
	defer closeQueue(q) // when it returns, the queue no longer accesses memory
	out, err := newFrame(f.call, connectReply{To: q.Endpoint()})
	if err != nil {
		return err
	}
	out.status = statusOK
	if err := out.write(c); err != nil {
		return err
	}
	if err := c.waitByte(); err != nil {
		return err // usually the peer closed the connection
	}
	return fmt.Errorf("unexpected data after a queue pair: %w", errdefs.ErrInvalid)
}

// connectQueue opens a queue pair with access to a segment and connects it.
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
	// Bind first: closing the segment ends bound connections only.
	if err := e.served.bind(c, s); err != nil {
		return nil, err
	}
	q, err := d.Open(r.NIC)
	if err != nil {
		return nil, err
	}
	if err := q.Connect(r.From); err != nil {
		d.Retire(q)
		return nil, err
	}
	return q, nil
}

// bind marks c as a connection for a queue pair of a segment. It returns ErrBusy if half of all
// connections are bound, so that slots remain for other connections.
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

// endOf ends the queue pairs of a segment and waits until they no longer access memory.
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

// offer registers the region of a buffer with the NICs, if any. If optional NICs refuse it, the
// description has the cause.
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

// pin registers the region of a buffer for queue pairs of this segment. It skips memory of another
// process, because that process could not free the memory while it is pinned here.
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

// withdraw unregisters the region of a buffer from the NICs.
func (s *Segment) withdraw(ctx context.Context, b *buffer) error {
	d := s.domain.Load()
	if d == nil {
		return nil
	}
	return d.Unregister(ctx, b.region)
}

// disconnect ends the segment's queue pairs and closes its domain. It may be retried.
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
