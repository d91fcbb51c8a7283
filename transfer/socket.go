package transfer

import (
	"bufio"
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
)

// socketConn is a conn that transfers the bytes over its connection. One goroutine writes requests
// and another one reads replies.
type socketConn struct {
	*conn
	r *bufferedConn
	w *bufio.Writer
}

// openSocket opens a conn over sockets.
func (p *peer) openSocket(ctx context.Context) (*conn, error) {
	number := p.e.connID.Add(1)
	c, r, err := p.dial(ctx, hello{purpose: forData, conn: number})
	if err != nil {
		return nil, err
	}
	socket := &socketConn{newConn(p, number, c), r, bufio.NewWriterSize(c, dataBuffer)}
	if err := p.addConn(socket.conn); err != nil {
		return nil, errors.Join(err, ignoreClosed(c.Close()))
	}
	socket.run(socket.writeAll, socket.readAll)
	return socket.conn, nil
}

func (c *socketConn) writeAll() error {
	for {
		f := c.next()
		if f == nil {
			if err := c.w.Flush(); err != nil {
				return err
			}
			if err := c.sleep(); err != nil {
				return err
			}
			continue
		}
		err := c.write(f)
		close(f.written)
		if err != nil {
			return err
		}
	}
}

func (c *socketConn) write(f *pendingPart) error {
	q := request{op: f.part.op, id: f.id, segment: f.part.to.number, shape: f.part.shape}
	if q.op == Read {
		return q.write(c.w)
	}
	list := f.part.extents()
	if err := head(c.w, q.write, &q.shape, list); err != nil {
		return err
	}
	socket := &watchedWriter{w: c.w, conn: c.paced}
	err := c.p.e.mover.Send(c.ctx, socket, list)
	if err != nil && socket.err == nil && c.ctx.Err() == nil {
		// finishAll uses the cause. The conn ends because the announced bytes are missing.
		f.cause = &localError{err}
	}
	return err
}

// localError is a failure of local memory. Retrying the part on another conn would fail again.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }

func (e *localError) Unwrap() error { return e.err }

func (c *socketConn) readAll() error {
	for {
		p, err := readReply(c.r)
		if err != nil {
			return err
		}
		f := c.oldest()
		want := int64(0)
		if f != nil && f.part.op == Read && p.status == statusOK {
			want = f.part.bytes
		}
		if f == nil || f.id != p.id || p.bytes != want {
			return fmt.Errorf("reply %d of %d bytes: %w", p.id, p.bytes, errdefs.ErrMismatch)
		}
		verdict := p.status.err(p.text)
		if want > 0 {
			if verdict, err = c.receive(f); err != nil {
				return err
			}
		}
		select { // the target may refuse the request before all bytes are sent
		case <-f.written:
		case <-c.ctx.Done():
			return errConnEnded
		}
		c.complete(verdict)
	}
}

// receive receives the bytes of a read. verdict is the result of the part. err is a failure of the
// connection.
func (c *socketConn) receive(f *pendingPart) (verdict, err error) {
	in := c.r.body(f.part.bytes, &f.part.shape)
	merr := c.p.e.mover.Receive(c.ctx, in, f.part.extents())
	if merr != nil {
		if in.err != nil { // no failure of local memory: the part is retried on another conn
			return nil, noEOF(in.err)
		}
		if err := in.skip(); err != nil {
			return nil, errors.Join(noEOF(merr), err)
		}
	}
	p, err := readReply(c.r)
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
