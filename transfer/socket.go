package transfer

import (
	"bufio"
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
)

// socketLane is a lane whose connection has the bytes, too: one goroutine writes requests, another takes their replies.
type socketLane struct {
	*lane
	r *inlet
	w *bufio.Writer
}

// openSocket opens a lane over sockets.
func (p *peer) openSocket(ctx context.Context) (*lane, error) {
	number := p.e.laneID.Add(1)
	c, r, err := p.dial(ctx, hello{purpose: forData, lane: number})
	if err != nil {
		return nil, err
	}
	l := &socketLane{newLane(p, number, c), r, bufio.NewWriterSize(c, laneBuffer)}
	if err := p.keep(l.lane); err != nil {
		return nil, errors.Join(err, quiet(c.Close()))
	}
	l.run(l.writeAll, l.readAll)
	return l.lane, nil
}

func (l *socketLane) writeAll() error {
	for {
		f := l.next()
		if f == nil {
			if err := l.w.Flush(); err != nil {
				return err
			}
			if err := l.sleep(); err != nil {
				return err
			}
			continue
		}
		err := l.write(f)
		close(f.written)
		if err != nil {
			return err
		}
	}
}

func (l *socketLane) write(f *flight) error {
	q := request{op: f.part.op, id: f.id, segment: f.part.to.number, shape: f.part.shape}
	if q.op == Read {
		return q.write(l.w)
	}
	list := f.part.extents()
	if err := head(l.w, q.write, &q.shape, list); err != nil {
		return err
	}
	socket := &watched{w: l.w, conn: l.conn}
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

func (l *socketLane) readAll() error {
	for {
		p, err := readReply(l.r)
		if err != nil {
			return err
		}
		f := l.first()
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
		l.landed(verdict)
	}
}

// receive takes a read's bytes. verdict is what went wrong with the memory, err with the connection.
func (l *socketLane) receive(f *flight) (verdict, err error) {
	in := l.r.body(f.part.bytes, &f.part.shape)
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
