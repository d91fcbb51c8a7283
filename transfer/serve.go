package transfer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/share"
	"github.com/kvlane/kvlane/wire"
)

// served has the connections that other engines have opened.
type served struct {
	slots  *wire.Slots
	budget *wire.Budget // memory of the requests in progress
	queues int          // maximum number of connections for queue pairs; they are never idle

	mu     sync.Mutex
	closed bool
	all    map[*servedConn]struct{} // including connections that lost their slot but have not ended
	conns  map[connKey]*servedConn
}

// requestsBytes is the memory that requests of all connections may use together. Requests of at
// most smallBytes do not count.
const (
	requestsBytes = 64 << 20
	smallBytes    = 128 << 10
)

// connKey identifies a data connection among the connections from all engines.
type connKey struct {
	from   share.Identity
	number uint64
}

// servedConn is a connection that another engine has opened.
type servedConn struct {
	*pacedConn
	slot *wire.Slot
	r    *bufferedConn
	w    *bufio.Writer
	// ctx ends when this process closes the connection. done is closed when the connection no
	// longer accesses memory.
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
	// segment is the segment that the connection's queue pair accesses, or nil. Guarded by
	// served.mu.
	segment *Segment
}

// dataBuffer and controlBuffer are the buffer sizes of data and other connections. Large pieces are
// read and written without the buffer.
const (
	dataBuffer    = 256 << 10
	controlBuffer = 4 << 10
)

func bufferOf(p purpose) int {
	if p == forData {
		return dataBuffer
	}
	return controlBuffer
}

func (s *served) init(o *Options) {
	s.slots, s.queues = wire.NewSlots(o.Conns), max(o.Conns/2, 1)
	s.budget = wire.NewBudget(requestsBytes, smallBytes, o.Stall)
	s.all, s.conns = make(map[*servedConn]struct{}), make(map[connKey]*servedConn)
}

func (s *served) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all)
}

// add assigns a slot to c. It returns false if no slot is free or the engine is closing.
func (s *served) add(c *servedConn) bool {
	slot := s.slots.Take(c.end)
	if slot == nil {
		return false
	}
	c.slot = slot
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		s.slots.Release(c.slot)
		return false
	}
	s.all[c] = struct{}{}
	return true
}

func (s *served) remove(c *servedConn) {
	s.slots.Release(c.slot)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, c)
}

// register registers a data connection. It returns false if the key exists.
func (s *served) register(k connKey, c *servedConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns[k] != nil {
		return false
	}
	s.conns[k] = c
	return true
}

func (s *served) unregister(k connKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, k)
}

// fence ends a data connection and waits until the connection no longer accesses memory.
func (s *served) fence(ctx context.Context, k connKey) error {
	s.mu.Lock()
	c := s.conns[k]
	s.mu.Unlock()
	if c == nil {
		return nil
	}
	c.end()
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("connection %d is still in use: %w", k.number, errdefs.ErrBusy)
	}
}

func (s *served) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for c := range s.all {
		c.stopReading()
	}
	for _, c := range s.conns {
		c.end()
	}
}

// stopReading stops reading requests. A request that was already read is still answered, because
// its sender could not find out whether it was executed.
func (c *servedConn) stopReading() {
	c.cancel()
	if half, ok := c.Conn.(*net.TCPConn); !ok || half.CloseRead() != nil {
		_ = c.Close()
	}
}

// end closes the connection. This ends the goroutine that serves it.
func (c *servedConn) end() {
	c.cancel()
	_ = c.Close()
}

func (e *Engine) accept() {
	wire.Accept(e.listener, func(raw net.Conn) {
		c := newServedConn(e, raw)
		if !e.served.add(c) {
			c.end()
			return
		}
		e.running.Go(func() {
			if err := e.serve(c); errors.Is(err, errdefs.ErrInvalid) || errors.Is(err, errdefs.ErrMismatch) {
				e.counters.malformed.Add(1)
			}
			c.end()
			close(c.done)
			e.served.remove(c)
		})
	}, func() {})
}

func newServedConn(e *Engine, raw net.Conn) *servedConn {
	p := newPacedConn(raw, e.o.Stall)
	p.pace = wire.NewPace(e.o.Stall)
	c := &servedConn{pacedConn: p, slot: new(wire.Slot), done: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancel(e.ctx)
	return c
}

// serve serves a connection and returns the reason for its end.
func (e *Engine) serve(c *servedConn) error {
	c.expect(1)
	b := make([]byte, helloBytes)
	if _, err := io.ReadFull(c.pacedConn, b); err != nil {
		return err
	}
	h, err := decodeHello(b)
	if err != nil {
		_, _ = c.Write(encodeWelcome(statusOf(err), e.id))
		return err
	}
	if h.to != (share.Identity{}) && h.to != e.id {
		_, err := c.Write(encodeWelcome(statusOther, e.id))
		return err
	}
	c.r, c.w = newBufferedConn(c.pacedConn, h.purpose), bufio.NewWriterSize(c.pacedConn, bufferOf(h.purpose))
	if h.purpose != forControl {
		k := connKey{h.from, h.conn}
		if !e.served.register(k, c) {
			_, _ = c.Write(encodeWelcome(statusInvalid, e.id))
			return fmt.Errorf("connection %d exists already: %w", h.conn, errdefs.ErrInvalid)
		}
		defer e.served.unregister(k)
	}
	if _, err := c.Write(encodeWelcome(statusOK, e.id)); err != nil {
		return err
	}
	switch h.purpose {
	case forData:
		return e.serveData(c)
	case forQueue:
		return e.serveQueue(c)
	default:
		return e.serveControl(c, h.from)
	}
}

// waitRequest waits for the first byte of a request. Until then, another connection may take the
// slot.
func (c *servedConn) waitRequest() error {
	c.slot.Idle()
	err := c.waitByte()
	c.slot.Busy()
	return err
}

// waitByte waits for a byte without a time limit.
func (c *servedConn) waitByte() error {
	c.expect(-1)
	_, err := c.r.Peek(1)
	c.expect(1)
	c.pace.Begin()
	return err
}

func (e *Engine) serveControl(c *servedConn, from share.Identity) error {
	for {
		if err := c.waitRequest(); err != nil {
			return err
		}
		if err := e.serveCall(c, from); err != nil {
			return err
		}
		if err := c.w.Flush(); err != nil {
			return err
		}
	}
}

// serveCall reads a control request and writes the reply.
func (e *Engine) serveCall(c *servedConn, from share.Identity) error {
	f, n, err := readFrameHead(c.r)
	if err != nil {
		return err
	}
	if n > maxRequestPayload {
		return fmt.Errorf("request of type %d and %d bytes, of %d at most: %w", f.call, n, maxRequestPayload, errdefs.ErrInvalid)
	}
	release, err := e.served.budget.Take(c.ctx, int64(n))
	if err != nil {
		return err
	}
	defer release()
	if err := f.readPayload(c.r, n); err != nil {
		return err
	}
	out := frame{call: f.call, status: statusOK}
	answer, err := e.answer(c.ctx, &f, from)
	if err == nil && answer != nil {
		out, err = newFrame(f.call, answer)
		out.status = statusOK
	}
	if err != nil {
		out = frame{call: f.call, status: statusOf(err), payload: textOf(err)}
	}
	return out.write(c.w)
}

// answer executes a control request and returns the reply's payload.
func (e *Engine) answer(ctx context.Context, f *frame, from share.Identity) (any, error) {
	switch f.call {
	case callDescribe:
		var q describeRequest
		if err := f.decode(&q); err != nil {
			return nil, err
		}
		s, err := e.find(q.Name)
		if err != nil {
			return nil, err
		}
		return s.Describe(), nil
	case callFence:
		var q fenceRequest
		if err := f.decode(&q); err != nil {
			return nil, err
		}
		// The sender waits at most for Stall.
		ctx, cancel := context.WithTimeout(ctx, e.o.Stall/2)
		defer cancel()
		for _, n := range q.Lanes {
			if err := e.served.fence(ctx, connKey{from, n}); err != nil {
				return nil, err
			}
		}
		return nil, nil
	case callNotify:
		var q notifyRequest
		if err := f.decode(&q); err != nil {
			return nil, err
		}
		q.From = from
		return nil, e.inbox.put(&q)
	default:
		return nil, nil // callProbe
	}
}
