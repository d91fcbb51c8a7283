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
	h, err := e.hold(q)
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
		if err := (&reply{status: statusOK, id: q.id, bytes: n}).write(c.w); err != nil {
			return err
		}
		if err := e.mover.Send(c.ctx, c.w, h.List); err != nil {
			return err
		}
		e.counters.out.Add(n)
		return nil
	}
	body := &io.LimitedReader{R: c.r, N: n}
	if err == nil {
		err = e.mover.Receive(c.ctx, body, h.List)
	}
	if err != nil { // and the rest of the bytes, so that the next request is found
		if _, cerr := io.Copy(io.Discard, body); cerr != nil || body.N > 0 {
			return errors.Join(noEOF(err), cerr)
		}
	} else {
		e.counters.in.Add(n)
	}
	return (&reply{status: statusOf(err), id: q.id, text: textOf(err)}).write(c.w)
}

// hold holds what the request is about. ErrNotFound.
func (e *Engine) hold(q *request) (*memory.Held, error) {
	e.mu.Lock()
	s := e.numbers[q.segment]
	e.mu.Unlock()
	if s == nil {
		return nil, fmt.Errorf("segment number %d: %w", q.segment, errdefs.ErrNotFound)
	}
	h := s.table.Hold()
	if err := q.shape.each(func(off, n int64) error { return h.Add(uint64(off), n) }); err != nil {
		h.Release()
		return nil, err
	}
	return h, nil
}
