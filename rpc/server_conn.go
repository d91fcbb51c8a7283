package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rpc/internal/frame"
	"github.com/kvlane/kvlane/rpc/internal/pb"
	"github.com/kvlane/kvlane/wire"
)

// smallBody is the length up to which requests do not count towards MemoryBytes.
const smallBody = 64 << 10

// metaCost is the memory of a decoded meta with many user fields, by its length.
const metaCost = 8

// serverConn is a connection of a client.
type serverConn struct {
	s        *Server
	conn     net.Conn
	slot     *wire.Slot
	out      *writer
	streams  *streamTable
	ctx      context.Context // context of the calls; ends with the connection
	cancel   context.CancelCauseFunc
	identity any
	trusted  bool // the credential was checked

	mu       sync.Mutex
	accesses map[int64]*access // by correlation id
	calls    int               // calls whose response is not written yet
	changed  *sync.Cond        // calls decreased
	asks     bool              // a request had ReportExecuted
	notified bool              // the client is sent a LogOff, and will close the connection
	ended    chan struct{}     // closed after the last response
}

// run reads requests until the connection ends, and then cancels the calls. Their responses are
// still sent, since the client may have closed only its side.
func (c *serverConn) run() {
	defer c.s.group.Done()
	err := c.read()
	failed := c.out.failure()
	if failed != nil && errors.Is(err, net.ErrClosed) {
		err = failed // it has closed the connection
	}
	if failed != nil || !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		c.s.broken.Add(1)
	}
	c.cancel(fmt.Errorf("the connection of the call has ended: %w", err))
	ctx, cancel := context.WithTimeout(c.s.ctx, c.s.o.Stall)
	_ = c.drain(ctx) // later responses are dropped
	cancel()
	c.streams.close(&Error{FailedSocket, "the connection ended", err})
	c.out.close(fmt.Errorf("write response: %w", net.ErrClosed))
	if t := c.out.transport; t != nil {
		t.close(err)
	}
	c.s.slots.Release(c.slot)
	close(c.ended)
	c.s.mu.Lock()
	delete(c.s.conns, c)
	c.s.mu.Unlock()
}

// read reads requests and starts their calls.
func (c *serverConn) read() error {
	conn, t, err := c.s.negotiate(c.ctx, c.conn)
	if err != nil {
		return err
	}
	c.out.transport = t
	in := newSource(conn, t, frame.Limits{Body: c.s.o.MaxBodyBytes, Meta: c.s.o.MaxMetaBytes, Stall: c.s.o.Stall, Whole: true})
	return readFrames(in, c.streams, c.request)
}

// readFrames reads frames until the connection ends or a frame is malformed. handle reads the data
// of a message.
func readFrames(in frameSource, streams *streamTable, handle func(in frameSource, meta *pb.Meta, metaBytes int64) error) error {
	for {
		h, b, err := in.Next()
		if err != nil {
			return err
		}
		if h.Kind == frame.Stream {
			if err := streams.read(in, b); err != nil {
				return err
			}
		} else {
			meta, err := decodeMeta(b)
			if err != nil {
				return fmt.Errorf("decode the meta of a message: %w: %w", errdefs.ErrInvalid, err)
			}
			if err := handle(in, meta, h.Meta); err != nil {
				return err
			}
		}
	}
}

// request reads the data of a request and starts its call.
func (c *serverConn) request(in frameSource, meta *pb.Meta, metaBytes int64) error {
	a, err := c.accessOf(meta)
	if err != nil {
		return err
	}
	if a != nil && a.message.Cancel != 0 {
		a.cancel()
		c.s.group.Go(func() { c.answerFence(meta.GetCorrelationId(), a.message.Cancel) })
		return in.Skip()
	}
	if reportsExecuted(meta) {
		c.mu.Lock()
		c.asks = true
		c.mu.Unlock()
	}
	c.slot.Busy()
	c.s.requests.Add(1)
	if !c.trusted {
		if err := c.authenticate(meta); err != nil {
			return c.deny(in, meta, err)
		}
	}
	q := &request{c: c, meta: meta, access: a, bytes: in.Left()}
	if ms := meta.GetRequest().GetTimeoutMs(); ms > 0 {
		q.deadline = time.Now().Add(time.Duration(ms) * time.Millisecond)
	}
	if q.failed = c.begin(); q.failed == nil {
		q.release, q.failed = c.reserve(min(in.Left()+metaCost*metaBytes, c.s.o.MemoryBytes))
	}
	if q.failed != nil {
		if e := (*Error)(nil); !errors.As(q.failed, &e) {
			q.end()
			return q.failed
		}
	}
	if err := q.read(in); err != nil {
		q.end()
		return err
	}
	if a != nil {
		c.beginAccess(meta.GetCorrelationId(), a)
	}
	c.s.group.Add(1)
	go q.run()
	return nil
}

// reserve reserves memory for a request. It waits for it, unless frames of streams would wait too.
func (c *serverConn) reserve(n int64) (release func(), err error) {
	if !c.streams.used() {
		return c.s.budget.Take(c.s.ctx, n)
	}
	release, ok := c.s.budget.TryTake(n)
	if !ok {
		return nil, Errorf(Overcrowded, "the server has no memory for the request, and the connection has streams")
	}
	return release, nil
}

// read reads the data of a request, or skips them if it fails.
func (q *request) read(in frameSource) (err error) {
	size := int64(q.meta.GetAttachmentSize())
	if q.failed != nil || size < 0 || size > in.Left() { // a wrong size fails the call too
		return in.Skip()
	}
	if q.message, err = in.ReadHost(in.Left() - size); err == nil {
		q.attachment, err = in.ReadChain(size)
	}
	if code := receiveCode(err); code != OK {
		q.failed = &Error{code, "the server could not receive the request", err}
		err = in.Skip()
	}
	return err
}

// deny answers a request without a valid credential. It returns the error, which ends the
// connection.
func (c *serverConn) deny(in frameSource, meta *pb.Meta, err error) error {
	if skipped := in.Skip(); skipped != nil {
		return skipped
	}
	_ = c.begin() // the answer is sent also to a client that does not read
	q := &request{c: c, meta: meta}
	q.send(&pb.Meta{
		Response:      &pb.Response{ErrorCode: proto.Int32(int32(Unauthorized)), ErrorText: proto.String("Fail to authenticate")},
		CorrelationId: proto.Int64(meta.GetCorrelationId()),
	}, payload{}, nil)
	return err
}

// authenticate checks the credential of the first request.
func (c *serverConn) authenticate(meta *pb.Meta) (err error) {
	if c.s.o.Authenticate != nil {
		ctx, cancel := context.WithTimeout(c.ctx, c.s.o.Stall)
		defer cancel()
		if c.identity, err = c.s.o.Authenticate(ctx, meta.GetAuthenticationData(), c.conn.RemoteAddr()); err != nil {
			return fmt.Errorf("authenticate %s: %w", c.conn.RemoteAddr(), err)
		}
	}
	c.trusted = true
	return nil
}

// begin counts a call. It waits while the connection has too many, or too many unread bytes. It
// returns Overcrowded if the client reads nothing. While the connection has streams, whose frames
// must not wait for calls, it returns LimitReached for a call too many.
func (c *serverConn) begin() error {
	err := c.out.admit(c.ctx, 0, true)
	if errors.Is(err, errdefs.ErrBusy) {
		err = &Error{Overcrowded, fmt.Sprintf("more than %d bytes wait for the client", c.s.o.MaxUnsentBytes), err}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for err == nil && c.calls >= c.s.o.MaxPipelined {
		if c.streams.used() && c.calls < 2*c.s.o.MaxPipelined {
			err = Errorf(LimitReached, "more than %d calls on a connection with streams", c.s.o.MaxPipelined)
			break
		}
		c.changed.Wait()
	}
	c.calls++
	return err
}

// end ends a call.
func (c *serverConn) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls--; c.calls == 0 {
		c.slot.Idle()
	}
	c.changed.Broadcast()
}

// touch notes that a stream is in use, so that the connection does not count as idle for long.
func (c *serverConn) touch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls == 0 {
		c.slot.Idle() // from now on
	}
}

// drain waits until all calls have ended and their responses are written.
func (c *serverConn) drain(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.changed.Broadcast()
	})
	defer stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.calls > 0 {
		if ctx.Err() != nil {
			return fmt.Errorf("wait for %d calls of %s: %w", c.calls, c.conn.RemoteAddr(), context.Cause(ctx))
		}
		c.changed.Wait()
	}
	return nil
}
