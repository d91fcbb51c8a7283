package transfer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
)

// lane is a connection that carries requests to a peer, many at a time: one goroutine writes them, another takes their replies.
type lane struct {
	p      *peer
	number uint64
	conn   *pacedConn
	r      *bufio.Reader
	w      *bufio.Writer
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{}
	over   chan struct{} // closed when nothing of the lane runs any more

	mu    sync.Mutex
	err   error     // why it is dead
	queue []*flight // that are not begun
	sent  []*flight // that are begun, in order
	bytes int64     // of both
	last  uint64    // id of a request
}

// flight is a part on its way by a lane.
type flight struct {
	part *part
	// finish is called once, when nothing of this process touches the part's memory any more.
	finish  func(error)
	id      uint64
	written chan struct{} // closed when the writer is done with it
	cause   error         // what went wrong here, and not with the lane
}

func newLane(p *peer, number uint64, c *pacedConn, r *bufio.Reader) *lane {
	ctx, cancel := context.WithCancel(context.Background())
	return &lane{
		p: p, number: number, conn: c, r: r, w: bufio.NewWriterSize(c, laneBuffer), ctx: ctx, cancel: cancel,
		wake: make(chan struct{}, 1), over: make(chan struct{}),
	}
}

func (l *lane) run() {
	var both sync.WaitGroup
	both.Go(func() { l.fail(l.writeAll()) })
	both.Go(func() { l.fail(l.readAll()) })
	go func() {
		both.Wait()
		l.reap()
		close(l.over)
	}()
}

func (l *lane) load() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes
}

// begin takes a part in. It does not block.
func (l *lane) begin(p *part, finish func(error)) (*flight, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, l.err
	}
	l.last++
	f := &flight{part: p, finish: finish, id: l.last, written: make(chan struct{})}
	l.queue = append(l.queue, f)
	l.bytes += p.bytes
	l.conn.expect(1)
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return f, nil
}

// abort ends a flight: with the lane, if it is begun.
func (l *lane) abort(f *flight, why error) {
	l.mu.Lock()
	i := slices.Index(l.queue, f)
	begun := slices.Contains(l.sent, f)
	if i >= 0 {
		l.queue = slices.Delete(l.queue, i, i+1)
		l.bytes -= f.part.bytes
		l.conn.expect(-1)
	}
	l.mu.Unlock()
	switch {
	case i >= 0:
		f.finish(why)
	case begun:
		l.fail(fmt.Errorf("a transfer was given up: %s", why.Error())) // which is no reason of the others'
	}
}

// fail ends the lane. The first cause stays.
func (l *lane) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.err = fmt.Errorf("connection to %s: %w", l.p.addr, err)
	l.cancel()
	_ = l.conn.Close()
}

// reap gives back what was on its way, when nobody reads or writes any more.
func (l *lane) reap() {
	l.mu.Lock()
	left := slices.Concat(l.sent, l.queue)
	owed := slices.ContainsFunc(l.sent, func(f *flight) bool { return f.part.op == Write })
	err := l.err
	l.sent, l.queue, l.bytes = nil, nil, 0
	l.mu.Unlock()
	l.p.drop(l, owed) // before anybody can send again
	for _, f := range left {
		if f.cause != nil {
			f.finish(f.cause)
		} else {
			f.finish(err)
		}
	}
}

// next returns the next flight to begin, or nil.
func (l *lane) next() *flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 || l.err != nil {
		return nil
	}
	f := l.queue[0]
	l.queue = l.queue[1:]
	l.sent = append(l.sent, f)
	return f
}

// errLane is why a lane ends that was told to.
var errLane = errors.New("it was ended")

func (l *lane) writeAll() error {
	for {
		f := l.next()
		if f == nil {
			if err := l.w.Flush(); err != nil {
				return err
			}
			select {
			case <-l.wake:
				continue
			case <-l.ctx.Done():
				return errLane
			}
		}
		err := l.write(f)
		close(f.written)
		if err != nil {
			return err
		}
	}
}

func (l *lane) write(f *flight) error {
	q := request{op: f.part.op, id: f.id, segment: f.part.to.number, shape: f.part.shape}
	if q.op == Read {
		return q.write(l.w)
	}
	list := f.part.extents()
	if err := head(l.w, q.write, &q.shape, list); err != nil {
		return err
	}
	socket := &watched{w: l.w}
	err := l.p.e.mover.Send(l.ctx, socket, list)
	if err != nil && socket.err == nil && l.ctx.Err() == nil {
		f.cause = &localError{err} // reap reads it, and the lane ends: its bytes were announced
	}
	return err
}

// localError is why a part cannot be moved by any lane: this process's memory failed.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }

func (e *localError) Unwrap() error { return e.err }

func (l *lane) readAll() error {
	for {
		p, err := readReply(l.r)
		if err != nil {
			return err
		}
		l.mu.Lock()
		var f *flight
		if len(l.sent) > 0 {
			f = l.sent[0]
		}
		l.mu.Unlock()
		want := int64(0)
		if f != nil && f.part.op == Read && p.status == statusOK {
			want = f.part.bytes
		}
		if f == nil || f.id != p.id || p.bytes != want {
			return fmt.Errorf("reply %d of %d bytes: %w", p.id, p.bytes, errdefs.ErrMismatch)
		}
		verdict := p.status.err(p.text)
		if want > 0 {
			if verdict, err = l.receive(f); err != nil {
				return err
			}
		}
		select { // a refusal may come while its bytes are still sent
		case <-f.written:
		case <-l.ctx.Done():
			return errLane
		}
		l.mu.Lock()
		l.sent = l.sent[1:]
		l.bytes -= f.part.bytes
		l.mu.Unlock()
		l.conn.expect(-1)
		f.finish(verdict)
	}
}

// receive takes a read's bytes. verdict is what went wrong with the memory, err with the connection.
func (l *lane) receive(f *flight) (verdict, err error) {
	in := &body{l.r, l.conn, f.part.bytes, f.part.shape.direct()}
	merr := l.p.e.mover.Receive(l.ctx, in, f.part.extents())
	if merr != nil {
		if err := in.skip(); err != nil {
			return nil, errors.Join(noEOF(merr), err)
		}
	}
	p, err := readReply(l.r)
	switch {
	case err != nil:
		return nil, err
	case p.id != f.id || p.bytes != 0:
		return nil, fmt.Errorf("reply %d of %d bytes behind a read's: %w", p.id, p.bytes, errdefs.ErrMismatch)
	case merr != nil:
		return &localError{merr}, nil
	}
	return p.status.err(p.text), nil
}
