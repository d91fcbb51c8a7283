package mooncake

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/transfer"
	"github.com/kvlane/kvlane/wire"
)

// lane sends parts over one connection and replaces the connection when it fails. One goroutine
// sends requests. For each connection, another goroutine receives replies, in the order of the
// requests.
type lane struct {
	r *Remote

	// Guarded by the remote's mu.
	conn     net.Conn
	inFlight []*part // parts whose request was started and whose reply has not arrived, in order
	bytes    uint64  // total length of the parts in inFlight
	err      error   // reason for which the connection ended, or nil
	// refused means that the target refused the oldest part and executes none of the later ones.
	refused   bool
	sendEnded bool // no more requests are sent

	// moved is the time in Unix nanoseconds of the last byte, or of the first request after an idle
	// period.
	moved atomic.Int64
}

// replyTimeout is the maximum time to receive replies after sending has failed.
const replyTimeout = time.Second

// run sends parts until the remote is closed.
func (l *lane) run() {
	for {
		p := l.take(true)
		if p == nil {
			return
		}
		ctx, cancel := context.WithCancel(p.b.ctx)
		stop := context.AfterFunc(l.r.ctx, cancel)
		conn, s, err := l.r.connect(ctx)
		stop()
		cancel()
		if err != nil {
			l.failUnreachable(p, err)
			continue
		}
		l.serve(conn, s.Version >= 2)
	}
}

// failUnreachable fails the queued parts of p's batch because no connection could be opened.
func (l *lane) failUnreachable(p *part, err error) {
	r := l.r
	r.mu.Lock()
	l.inFlight, l.bytes = nil, 0
	r.idleLanes++
	gone := append(r.drop(p.b), p)
	closed := r.closed
	r.mu.Unlock()
	err = fmt.Errorf("connect: %w: %w", errdefs.ErrBroken, err)
	if closed {
		err = errdefs.ErrClosed
	}
	for _, p := range gone {
		p.finish(p.failureOf(err))
	}
}

// take removes the next part from the queue if it fits into the limits, and adds it to inFlight. It
// returns nil if the connection or the remote has ended, or if the queue is empty and wait is
// false.
func (l *lane) take(wait bool) *part {
	r := l.r
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.closed && l.err == nil {
		if r.next < len(r.queue) {
			p := r.queue[r.next]
			if len(l.inFlight) == 0 || len(l.inFlight) < windowParts && l.bytes+p.Length <= windowBytes {
				r.queue[r.next] = nil
				if r.next++; r.next == len(r.queue) {
					r.queue, r.next = r.queue[:0], 0
				}
				if len(l.inFlight) == 0 {
					r.idleLanes--
					l.moved.Store(time.Now().UnixNano())
				}
				l.inFlight, l.bytes = append(l.inFlight, p), l.bytes+p.Length
				p.b.tasks[p.index].status.CompareAndSwap(uint32(transfer.StatusWaiting), uint32(transfer.StatusPending))
				return p
			}
		}
		if !wait {
			return nil
		}
		r.changed.Wait()
	}
	return nil
}

// kill ends the lane's connection, if any. The caller holds Remote.mu.
func (l *lane) kill(err error) {
	if l.conn == nil || l.err != nil {
		return
	}
	l.err = err
	_ = l.conn.Close() // both goroutines get an error
	l.r.changed.Broadcast()
}

// serve uses a connection until it ends. The first part is already in inFlight.
func (l *lane) serve(conn net.Conn, v2 bool) {
	r := l.r
	r.mu.Lock()
	l.conn = conn
	if r.closed {
		l.kill(errdefs.ErrClosed)
	}
	first := l.inFlight[0]
	if first.b.ctx.Err() != nil { // the context ended while the lane was connecting
		l.kill(errBatchCanceled)
	}
	r.mu.Unlock()
	f := newFlow(conn, r.o.StallTime)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.fail(l.receive(f, v2))
	}()
	err := l.send(f, first, v2)
	r.mu.Lock()
	l.sendEnded = true
	r.changed.Broadcast()
	r.mu.Unlock()
	select {
	case <-done:
	// the target may have sent a status before it closed the connection
	case <-time.After(replyTimeout):
	}
	l.fail(err)
	<-done
	l.finishConn()
}

// fail ends the connection with err. Only the first error is kept.
func (l *lane) fail(err error) {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	l.kill(err)
}

// finishConn finishes the parts in inFlight after the connection has ended and both goroutines have
// stopped. Parts after a refused part are queued again.
func (l *lane) finishConn() {
	r := l.r
	r.mu.Lock()
	under, why, closed := l.inFlight, l.err, r.closed
	var refused *part
	var retry []*part
	if len(under) > 0 {
		r.idleLanes++
		if l.refused {
			refused, under = under[0], under[1:]
			retry, under = split(under, func(p *part) bool { return !closed && p.b.ctx.Err() == nil })
		}
	}
	l.conn, l.err, l.inFlight, l.bytes, l.refused, l.sendEnded = nil, nil, nil, 0, false, false
	if len(retry) > 0 {
		for _, p := range retry {
			p.sent = false
		}
		r.queue, r.next = append(retry, r.queue[r.next:]...), 0
		r.changed.Broadcast()
	}
	r.mu.Unlock()
	if closed {
		why = errdefs.ErrClosed
	} else if !errors.Is(why, errdefs.ErrBroken) {
		why = fmt.Errorf("%w: %w", errdefs.ErrBroken, why)
	}
	if refused != nil {
		refused.finish(transfer.StatusFailed, errRejected)
	}
	for _, p := range under {
		p.finish(p.failureOf(why))
	}
}

// split returns the parts for which holds returns true, and the other parts.
func split(parts []*part, holds func(*part) bool) (those, others []*part) {
	for _, p := range parts {
		if holds(p) {
			those = append(those, p)
		} else {
			others = append(others, p)
		}
	}
	return those, others
}

// send writes requests until the connection ends.
func (l *lane) send(f *flow, p *part, v2 bool) error {
	out := newBufferedWriter(f)
	head := make([]byte, 0, 2*headerBytes)
	for {
		h := header{length: p.Length, addr: p.Remote, op: p.Op, v2: v2}
		if _, err := out.Write(h.append(head)); err != nil {
			return stalled(err, f.stall)
		}
		if p.Op == transfer.Write {
			if err := l.r.o.Memory.Send(l.r.ctx, out, p.Local, p.Length); err != nil {
				return stalled(err, f.stall)
			}
			if !v2 { // the target executes this read after the write
				h := header{length: 1, addr: p.Remote + p.Length - 1, op: transfer.Read}
				if _, err := out.Write(h.append(head)); err != nil {
					return stalled(err, f.stall)
				}
			}
		}
		l.markSent(p)
		if p = l.take(false); p != nil {
			continue
		}
		if err := out.Flush(); err != nil {
			return stalled(err, f.stall)
		}
		if p = l.take(true); p == nil {
			return errdefs.ErrClosed
		}
	}
}

func (l *lane) markSent(p *part) {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	p.sent = true
	l.r.changed.Broadcast()
}

// receive reads replies until the connection ends.
func (l *lane) receive(f *flow, v2 bool) error {
	in := newBufferedConn(f)
	for {
		if _, err := in.Peek(1); err != nil {
			if isTimeout(err) && !l.stalled() {
				continue
			}
			return stalled(err, f.stall)
		}
		l.moved.Store(time.Now().UnixNano())
		p := l.oldest()
		if p == nil {
			return fmt.Errorf("the target sent an answer without a request: %w", errdefs.ErrInvalid)
		}
		if err := l.answer(p, in, v2); err != nil {
			return stalled(err, f.stall)
		}
		l.moved.Store(time.Now().UnixNano())
		if !l.finishOldest(p) {
			return nil
		}
		p.finish(transfer.StatusCompleted, nil)
	}
}

// stalled reports whether the requests in progress have moved no byte for too long.
func (l *lane) stalled() bool {
	r := l.r
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(l.inFlight) > 0 && time.Now().UnixNano()-l.moved.Load() > int64(r.o.StallTime)*7/8
}

func (l *lane) oldest() *part {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	if len(l.inFlight) == 0 {
		return nil
	}
	return l.inFlight[0]
}

// answer reads the reply to p, the oldest part in inFlight.
func (l *lane) answer(p *part, in *bufferedConn, v2 bool) error {
	if v2 {
		status, err := readStatus(in)
		switch {
		case err != nil:
			return err
		case status == statusRejected:
			l.r.mu.Lock()
			defer l.r.mu.Unlock()
			l.refused = true
			l.kill(errRejected)
			return errRejected
		case status != statusOK:
			return fmt.Errorf("the target returned the unknown status %#x: %w", status, errdefs.ErrInvalid)
		}
	}
	switch {
	case p.Op == transfer.Read:
		return l.r.o.Memory.Receive(l.r.ctx, in, p.Local, p.Length)
	case !v2:
		_, err := in.ReadByte()
		return err
	}
	return nil
}

var errRejected = &wire.AnswerError{Err: fmt.Errorf("the target rejected the address: %w", errdefs.ErrInvalid)}

func readStatus(in *bufferedConn) (uint64, error) {
	b, err := in.Peek(statusBytes)
	if err != nil {
		return 0, err
	}
	status := binary.LittleEndian.Uint64(b)
	_, err = in.Discard(statusBytes)
	return status, err
}

// finishOldest removes p, the oldest part in inFlight, and reports whether the connection is
// usable. It waits until all of p is sent, because a faulty target could confirm p early and p's
// memory may be reused after this call.
func (l *lane) finishOldest(p *part) bool {
	r := l.r
	r.mu.Lock()
	defer r.mu.Unlock()
	for !p.sent && l.err == nil && !l.sendEnded {
		r.changed.Wait()
	}
	if !p.sent {
		return false
	}
	l.inFlight[0] = nil
	l.inFlight, l.bytes = l.inFlight[1:], l.bytes-p.Length
	if len(l.inFlight) == 0 {
		r.idleLanes++
	}
	r.changed.Broadcast()
	return true
}
