package transfer

import (
	"errors"
	"fmt"
	"io"

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
		socket := &watched{w: c.w}
		if err = e.mover.Send(c.ctx, socket, h.List); err == nil {
			e.counters.out.Add(n)
		} else if err := socket.pad(n); err != nil {
			return err
		}
		return (&reply{status: statusOf(err), id: q.id, text: textOf(err)}).write(c.w)
	}
	in := &body{c.r, c.pacedConn, n, q.shape.direct()}
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

// watched notes how much was written, and whether it was the writer that failed.
type watched struct {
	w   io.Writer
	n   int64
	err error
}

func (w *watched) Write(p []byte) (n int, err error) {
	n, err = w.w.Write(p)
	w.n, w.err = w.n+int64(n), err
	return n, err
}

// pad writes zeros in place of what is missing of n bytes.
func (w *watched) pad(n int64) error {
	zeros := make([]byte, min(n-w.n, laneBuffer))
	for w.err == nil && w.n < n {
		_, _ = w.Write(zeros[:min(n-w.n, int64(len(zeros)))]) // w.err has it
	}
	return w.err
}
