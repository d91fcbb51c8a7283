package transfer

import (
	"bufio"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/wire"
)

// serveData serves the requests of a data connection in order.
func (e *Engine) serveData(c *servedConn) error {
	var q request
	for {
		if err := c.waitRequest(); err != nil {
			return err
		}
		if err := e.serveRequest(c, &q); err != nil {
			return err
		}
		if err := c.w.Flush(); err != nil {
			return err
		}
	}
}

// serveRequest reads a request into q, executes it and replies. It returns an error if the
// connection cannot be used any more.
func (e *Engine) serveRequest(c *servedConn, q *request) error {
	release := func() {}
	defer func() { release() }()
	err := q.read(c.r, func(bytes int64) (err error) {
		release, err = e.served.budget.Take(c.ctx, bytes)
		return err
	})
	if err == nil {
		e.counters.requests.Add(1)
		err = e.do(c, q)
	}
	if memoryOf(int64(cap(q.shape.planes)), int64(cap(q.shape.pages))) > smallBytes {
		q.shape = shape{} // an idle connection must not keep the memory
	}
	return err
}

// do executes one request and replies. It returns an error if the connection cannot be used any
// more.
func (e *Engine) do(c *servedConn, q *request) error {
	l, err := e.leasePieces(q, c.end)
	if err != nil {
		e.counters.refused.Add(1)
	} else {
		defer l.lease.Release()
	}
	n := q.shape.bytes()
	if q.op == Read {
		return e.doRead(c, q, l, n, err)
	}
	in := c.r.body(n, &q.shape)
	for more := true; more && err == nil; {
		if more, err = l.next(); more {
			err = e.mover.Receive(c.ctx, in, l.lease.List)
		}
	}
	if err != nil { // skip the rest to find the next request
		if in.err != nil { // the connection failed: the initiator retries on another one
			return noEOF(in.err)
		}
		if serr := in.skip(); serr != nil {
			return errors.Join(noEOF(err), serr)
		}
	} else {
		e.counters.in.Add(n)
	}
	return (&reply{status: statusOf(err), id: q.id, text: textOf(err)}).write(c.w)
}

// doRead replies to a read of n bytes. If refused is not nil, it replies with this error.
func (e *Engine) doRead(c *servedConn, q *request, l *pieceList, n int64, refused error) error {
	if refused != nil {
		return (&reply{status: statusOf(refused), id: q.id, text: textOf(refused)}).write(c.w)
	}
	more, err := l.next()
	if err != nil {
		return err
	}
	if err := head(c.w, (&reply{status: statusOK, id: q.id, bytes: n}).write, &q.shape, l.lease.List); err != nil {
		return err
	}
	socket := &watchedWriter{w: c.w, conn: c.pacedConn}
	for more && err == nil {
		if err = e.mover.Send(c.ctx, socket, l.lease.List); err == nil {
			more, err = l.next()
		}
	}
	if err == nil {
		e.counters.out.Add(n)
	} else if err := socket.pad(n); err != nil {
		return err
	}
	return (&reply{status: statusOf(err), id: q.id, text: textOf(err)}).write(c.w)
}

// pieceList lists the pieces of a request whose memory is leased, a limited number at a time.
type pieceList struct {
	lease       *wire.Lease
	shape       *shape
	plane, page int // index of the next piece
}

// next lists the next pieces in lease.List. It returns false if there are no more.
func (l *pieceList) next() (more bool, err error) {
	l.lease.List = l.lease.List[:0]
	for n := 0; n < listedPieces && l.plane < len(l.shape.planes); n++ {
		pl := &l.shape.planes[l.plane]
		if err := l.lease.Add(uint64(pl.base+int64(l.shape.pages[l.page])*pl.stride), pl.bytes); err != nil {
			return false, err
		}
		if l.page++; l.page == len(l.shape.pages) {
			l.plane, l.page = l.plane+1, 0
		}
	}
	return len(l.lease.List) > 0, nil
}

// leasePieces leases the memory of a request. It does not list the pieces. end is called to end the
// request early. It returns ErrNotFound if memory is not registered.
func (e *Engine) leasePieces(q *request, end func()) (*pieceList, error) {
	e.mu.Lock()
	s := e.numbers[q.segment]
	e.mu.Unlock()
	if s == nil {
		return nil, fmt.Errorf("segment number %d: %w", q.segment, errdefs.ErrNotFound)
	}
	h := s.table.NewLease(end)
	if err := q.shape.each(func(off, n int64) error { return h.Keep(uint64(off), n) }); err != nil {
		h.Release()
		return nil, err
	}
	return &pieceList{lease: h, shape: &q.shape}, nil
}

// watchedWriter counts the bytes written to a connection and keeps the connection's first error.
type watchedWriter struct {
	w    *bufio.Writer
	conn *pacedConn // the connection below w
	n    int64
	err  error
}

func (w *watchedWriter) note(n int, err error) (int, error) {
	w.n, w.err = w.n+int64(n), err
	return n, err
}

func (w *watchedWriter) Write(p []byte) (int, error) { return w.note(w.w.Write(p)) }

// Flush implements wire.BriefWriter.
func (w *watchedWriter) Flush() error {
	w.err = w.w.Flush()
	return w.err
}

// Ready implements wire.BriefWriter.
func (w *watchedWriter) Ready(n int64) bool {
	return w.w.Buffered() == 0 || n <= int64(w.w.Available())
}

// WriteBy implements wire.BriefWriter.
func (w *watchedWriter) WriteBy(p []byte, by time.Time) (int, error) {
	switch {
	case w.w.Buffered() == 0:
		return w.note(w.conn.WriteBy(p, by))
	case len(p) <= w.w.Available():
		return w.Write(p)
	}
	return 0, nil // buffered bytes must be written first, and that has no time limit
}

// pad writes zeros for the missing bytes up to n.
func (w *watchedWriter) pad(n int64) error {
	zeros := make([]byte, min(n-w.n, dataBuffer))
	for w.err == nil && w.n < n {
		_, _ = w.Write(zeros[:min(n-w.n, int64(len(zeros)))]) // the error is in w.err
	}
	return w.err
}
