package endpoint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rpc/internal/hello"
)

// Dial offers RDMA on a new connection. It returns nil without an error if the server refuses, or
// this side cannot open a queue pair; refusal is then the reason, and conn continues with frames.
// After an error the connection is not usable.
func Dial(ctx context.Context, conn net.Conn, v hello.Version, o *Options) (_ *Endpoint, refusal, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.Stall)
	defer cancel()
	if end, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(end)                            // fails if closed, as reads do
		defer func() { _ = conn.SetDeadline(time.Time{}) }() // likewise
	}
	e, err := newEndpoint(ctx, nil, o)
	if err != nil {
		return nil, err, nil // nothing was sent
	}
	defer func() {
		if err != nil || refusal != nil {
			e.Close(errors.Join(err, refusal))
		}
	}()
	if v == hello.V3 && o.Direct {
		if err := e.openDirect(); err != nil {
			e.Close(err)
			return nil, err, nil
		}
	}
	own := e.hello(v)
	b, err := own.Append(nil)
	if err != nil {
		return nil, nil, err
	}
	if _, err := conn.Write(b); err != nil {
		return nil, nil, fmt.Errorf("write hello: %w", err)
	}
	h, err := hello.Read(conn)
	switch {
	case err == nil && h.Version != v:
		return nil, nil, fmt.Errorf("read hello of version %d, not %d: %w", h.Version, v, errdefs.ErrMismatch)
	case err == nil:
		refusal = e.connect(&h)
	case errors.Is(err, errdefs.ErrInvalid):
		refusal, err = fmt.Errorf("the server refuses RDMA: %w", err), nil
	default:
		return nil, nil, err
	}
	if _, err = conn.Write(hello.Ack(refusal == nil)); err != nil {
		return nil, nil, fmt.Errorf("write the ack of a handshake: %w", err)
	}
	if refusal != nil {
		return nil, refusal, nil
	}
	e.conn = conn
	e.start()
	return e, nil, nil
}

// Accept answers the hello of a client on a new connection, of which nothing was read. It returns
// nil without an error if the client, or this side, refuses RDMA; refusal is then the reason, and
// conn continues with frames. o is nil for a server without RDMA. After an error the connection is
// not usable.
func Accept(ctx context.Context, conn net.Conn, o *Options, stall time.Duration) (_ *Endpoint, refusal, err error) {
	ctx, cancel := context.WithTimeout(ctx, stall)
	defer cancel()
	if end, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(end)                            // fails if closed, as reads do
		defer func() { _ = conn.SetDeadline(time.Time{}) }() // likewise
	}
	h, err := hello.Read(conn)
	if err != nil && !errors.Is(err, errdefs.ErrInvalid) {
		return nil, nil, err
	}
	refusal, err = err, nil
	if refusal == nil && o == nil {
		refusal = fmt.Errorf("the server has no RDMA: %w", errdefs.ErrNotSupported)
	}
	var e *Endpoint
	if refusal == nil {
		e, refusal = newEndpoint(ctx, nil, o)
	}
	if refusal == nil && h.Extension != nil && o.Direct {
		refusal = e.openDirect()
	}
	if refusal == nil {
		refusal = e.connect(&h)
	}
	b := hello.Refusal(h.Version)
	if refusal == nil {
		own := e.hello(h.Version)
		b, err = own.Append(nil)
	}
	defer func() {
		if e != nil && (err != nil || refusal != nil) {
			e.Close(errors.Join(err, refusal))
		}
	}()
	if err != nil {
		return nil, nil, err
	}
	if _, err = conn.Write(b); err != nil {
		return nil, nil, fmt.Errorf("write hello: %w", err)
	}
	use, err := hello.ReadAck(conn)
	switch {
	case err != nil:
		return nil, nil, err
	case use && refusal != nil:
		return nil, nil, fmt.Errorf("the client uses RDMA that was refused: %w: %w", errdefs.ErrMismatch, refusal)
	case !use && refusal == nil:
		refusal = fmt.Errorf("the client refuses RDMA: %w", errdefs.ErrNotSupported)
	}
	if refusal != nil {
		return nil, refusal, nil
	}
	e.conn = conn
	e.start()
	return e, nil, nil
}
