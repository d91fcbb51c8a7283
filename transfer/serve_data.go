package transfer

import (
	"bufio"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/transfer/memory"
)

// serveData does a lane's requests, in order.
func (e *Engine) serveData(c *connection) error {
	var q request
	for {
		if err := c.next(); err != nil {
			return err
		}
		if err := q.read(c.r); err != nil {
			return err
		}
		e.counters.requests.Add(1)
		if err := e.do(c, &q); err != nil {
			return err
		}
		if err := c.w.Flush(); err != nil {
			return err
		}
	}
}

// do does one request and replies. It returns why the connection cannot go on.
func (e *Engine) do(c *connection, q *request) error {
	h, err := e.hold(q, c.end)
	if err != nil {
		e.counters.refused.Add(1)
	} else {
		defer h.Release()
	}
	n := q.shape.bytes()
	if q.op == Read {
		if err != nil {
			return (&reply{status: statusOf(err), id: q.id, text: textOf(err)}).write(c.w)
		}
		if err := head(c.w, (&reply{status: statusOK, id: q.id, bytes: n}).write, &q.shape, h.List); err != nil {
			return err
		}
		socket := &watched{w: c.w, conn: c.pacedConn}
		if err = e.mover.Send(c.ctx, socket, h.List); err == nil {
			e.counters.out.Add(n)
		} else if err := socket.pad(n); err != nil {
			return err
		}
		return (&reply{status: statusOf(err), id: q.id, text: textOf(err)}).write(c.w)
	}
	in := c.r.body(n, &q.shape)
	if err == nil {
		err = e.mover.Receive(c.ctx, in, h.List)
	}
	if err != nil { // and the rest of the bytes, so that the next request is found
		if serr := in.skip(); serr != nil {
			return errors.Join(noEOF(err), serr)
		}
	} else {
		e.counters.in.Add(n)
	}
	return (&reply{status: statusOf(err), id: q.id, text: textOf(err)}).write(c.w)
}

// hold holds what the request is about; end ends the request. ErrNotFound.
func (e *Engine) hold(q *request, end func()) (*memory.Held, error) {
	e.mu.Lock()
	s := e.numbers[q.segment]
	e.mu.Unlock()
	if s == nil {
		return nil, fmt.Errorf("segment number %d: %w", q.segment, errdefs.ErrNotFound)
	}
	h := s.table.Hold(end)
	if err := q.shape.each(func(off, n int64) error { return h.Add(uint64(off), n) }); err != nil {
		h.Release()
		return nil, err
	}
	return h, nil
}

// watched is a connection's writer that notes how much was written, and whether it was the writer that failed.
type watched struct {
	w    *bufio.Writer
	conn *pacedConn // what w writes to
	n    int64
	err  error
}

func (w *watched) note(n int, err error) (int, error) {
	w.n, w.err = w.n+int64(n), err
	return n, err
}

func (w *watched) Write(p []byte) (int, error) { return w.note(w.w.Write(p)) }

// Flush implements memory.BriefWriter.
func (w *watched) Flush() error {
	w.err = w.w.Flush()
	return w.err
}

// Ready implements memory.BriefWriter.
func (w *watched) Ready(n int64) bool { return w.w.Buffered() == 0 || n <= int64(w.w.Available()) }

// WriteBy implements memory.BriefWriter.
func (w *watched) WriteBy(p []byte, by time.Time) (int, error) {
	switch {
	case w.w.Buffered() == 0:
		return w.note(w.conn.WriteBy(p, by))
	case len(p) <= w.w.Available():
		return w.Write(p)
	}
	return 0, nil // what is gathered has to go first, however long that takes
}

// pad writes zeros in place of what is missing of n bytes.
func (w *watched) pad(n int64) error {
	zeros := make([]byte, min(n-w.n, laneBuffer))
	for w.err == nil && w.n < n {
		_, _ = w.Write(zeros[:min(n-w.n, int64(len(zeros)))]) // w.err has it
	}
	return w.err
}
