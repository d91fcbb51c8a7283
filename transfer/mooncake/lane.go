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
	"github.com/kvlane/kvlane/wire"
)

// lane carries parts over one connection at a time. One goroutine sends requests, and for each connection another takes answers, which
// come in the order of the requests.
type lane struct {
	r *Remote

	// Guarded by the remote's lock.
	conn      net.Conn
	inFlight  []*part // whose requests were begun and whose answers have not come, in order
	bytes     uint64  // of those
	err       error   // why the connection ended; nil while it serves
	refused   bool    // the target refused the first of under, and carries out none that follow
	sendEnded bool    // requests are sent no more: what was not is not going to be

	moved atomic.Int64 // when a byte last came, or the first request of several was begun; UnixNano
}

// lastWords is how long answers are still taken after a request could not be sent.
const replyTimeout = time.Second

// run carries parts until the remote is closed.
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

// unreached fails what waits of a batch, since there is no connection for it.
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

// take returns the next part that the lane has room for, which is then under way; nil if there is none and it is not to wait, or if the
// lane's connection or the remote has ended.
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
				p.b.tasks[p.index].status.CompareAndSwap(uint32(Waiting), uint32(Pending))
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

// kill ends the lane's connection, if it has one. The remote's lock is held.
func (l *lane) kill(err error) {
	if l.conn == nil || l.err != nil {
		return
	}
	l.err = err
	_ = l.conn.Close() // both goroutines find out
	l.r.changed.Broadcast()
}

// serve carries parts over a connection until it ends, the first being under way already.
func (l *lane) serve(conn net.Conn, v2 bool) {
	r := l.r
	r.mu.Lock()
	l.conn = conn
	if r.closed {
		l.kill(errdefs.ErrClosed)
	}
	first := l.inFlight[0]
	if first.b.ctx.Err() != nil { // while it connected, when there was nothing to kill
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
	case <-time.After(replyTimeout): // a target that has closed may have said why
	}
	l.fail(err)
	<-done
	l.finishConn()
}

// fail ends the connection for err, unless something has before.
func (l *lane) fail(err error) {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	l.kill(err)
}

// leave settles what was under way when the connection ended, and that neither goroutine touches any more. What follows a part that the target
// refused goes again, over another connection.
func (l *lane) finishConn() {
	r := l.r
	r.mu.Lock()
	under, why, closed := l.inFlight, l.err, r.closed
	var refused *part
	var again []*part
	if len(under) > 0 {
		r.idleLanes++
		if l.refused {
			refused, under = under[0], under[1:]
			again, under = split(under, func(p *part) bool { return !closed && p.b.ctx.Err() == nil })
		}
	}
	l.conn, l.err, l.inFlight, l.bytes, l.refused, l.sendEnded = nil, nil, nil, 0, false, false
	if len(again) > 0 {
		for _, p := range again {
			p.sent = false
		}
		r.queue, r.next = append(again, r.queue[r.next:]...), 0
		r.changed.Broadcast()
	}
	r.mu.Unlock()
	if closed {
		why = errdefs.ErrClosed
	} else if !errors.Is(why, errdefs.ErrBroken) {
		why = fmt.Errorf("%w: %w", errdefs.ErrBroken, why)
	}
	if refused != nil {
		refused.finish(Invalid, errRejected)
	}
	for _, p := range under {
		p.finish(p.failureOf(why))
	}
}

// split returns the parts of which that holds, and the others.
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
		if p.Op == Write {
			if err := l.r.o.Memory.Send(l.r.ctx, out, p.Local, p.Length); err != nil {
				return stalled(err, f.stall)
			}
			if !v2 { // the byte comes after all of them are where they belong
				h := header{length: 1, addr: p.Remote + p.Length - 1, op: Read}
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

// receive takes answers until the connection ends.
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
			return fmt.Errorf("the target answered what was not asked: %w", errdefs.ErrInvalid)
		}
		if err := l.answer(p, in, v2); err != nil {
			return stalled(err, f.stall)
		}
		l.moved.Store(time.Now().UnixNano())
		if !l.finishOldest(p) {
			return nil
		}
		p.finish(Completed, nil)
	}
}

// stalled reports whether requests are under way and none got on for long.
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

// answer reads what the target says to p, the oldest part under way.
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
			return fmt.Errorf("the target's status is %#x, which means nothing: %w", status, errdefs.ErrInvalid)
		}
	}
	switch {
	case p.Op == Read:
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

// complete takes p, the oldest part under way, off the lane. Its memory may be used again then, so it waits until all of p was sent: a target that
// confirms what it has not got yet is none to trust. It reports whether the connection still serves.
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
