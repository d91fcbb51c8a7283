package blockio

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/wire"
)

const (
	// fenceTimeout is the time after which a connection is closed because its server has not
	// confirmed a cancellation.
	fenceTimeout = 200 * time.Millisecond
	// flushBytes is the number of buffered bytes at which frames are sent, though more follow.
	flushBytes = 1 << 20
	// lostAfter is the number of keep-alive times without a frame after which a connection is lost.
	lostAfter = 3
)

var (
	errConnClosed = fmt.Errorf("the connection is closed: %w", errdefs.ErrClosed)
	errNoFence    = fmt.Errorf("the server did not confirm a cancellation within %v: %w", fenceTimeout, errdefs.ErrBroken)
)

// call is a request and its result. The caller may reuse memory only after done is closed.
type call struct {
	request  Request
	ctx      context.Context // a call that is queued when it ends is not sent; nil: none
	deadline time.Time
	memory   [][]byte // of each entry of a store or retrieve; nil for device memory
	extents  []mem.Extent
	done     chan struct{}

	// The goroutines of the connection write these. The caller reads them after done.
	result Result
	err    error

	// The connection's mutex guards these.
	written, answered bool
	rdma              bool // the result is a flag

	remote *remote // the link's mutex guards it
}

// control reports whether the call needs no credit.
func (k *call) control() bool { return Control(k.request.Op) }

// conn is a connection. One goroutine writes requests and another one reads results. A call that
// was sent ends with its result, or after both goroutines have returned: nothing accesses its
// memory then.
type conn struct {
	nc      net.Conn
	w       *wire.FrameWriter
	r       *wire.FrameReader
	link    *link // nil: without RDMA
	refusal error // of RDMA, or nil
	limits  Limits
	boot    [16]byte
	zone    string
	newer   func(epoch uint64) // ClientOptions.Newer, or nil
	wake    chan struct{}      // buffers one
	stop    chan struct{}      // closed by fail
	ended   chan struct{}      // closed after the last call has ended

	expected time.Time // the read deadline was set then; the reading goroutine's

	mu      sync.Mutex
	queue   []*call // control calls first
	calls   map[uint64]*call
	id      uint64
	credits int64
	err     error
}

// openConn sends the hello over nc and reads its result. With slots it connects a queue pair too,
// unless the server refuses. It closes nc after an error. newer is ClientOptions.Newer, or nil.
func openConn(ctx context.Context, nc net.Conn, h *Hello, s *slots, newer func(uint64)) (*conn, error) {
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	c, err := sayHello(nc, h)
	if err == nil && s != nil {
		c.link, c.refusal, err = c.attach(s)
	}
	if err == nil && !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		stop()
		if c != nil && c.link != nil {
			c.link.close()
		}
		return nil, errors.Join(fmt.Errorf("connect to block server: %w", err), context.Cause(ctx), nc.Close())
	}
	c.newer = newer
	var both sync.WaitGroup
	both.Go(func() { c.fail(c.write()) })
	both.Go(func() { c.fail(c.read()) })
	if c.link != nil {
		both.Go(func() { c.fail(c.link.run()) })
	}
	go func() {
		both.Wait()
		c.end()
	}()
	return c, nil
}

// fail closes the connection. Only the first error counts.
func (c *conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	if c.err = errConnClosed; err != nil {
		c.err = err
	}
	close(c.stop)
	if c.link != nil {
		c.link.cancel()
	}
	nc := c.nc
	if t, ok := nc.(interface{ NetConn() net.Conn }); ok {
		nc = t.NetConn() // closing TLS may wait for the peer
	}
	_ = nc.Close() // the first error counts
}

// failure returns the error of the connection, or nil while it is open.
func (c *conn) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// end ends all calls after the goroutines have returned and the queue pair is closed.
func (c *conn) end() {
	if c.link != nil {
		c.link.close()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.queue {
		c.finish(k, lostError{c.err})
	}
	for _, k := range c.calls {
		c.finish(k, lostError{c.err})
	}
	c.queue, c.calls = nil, nil
	close(c.ended)
}

// lostError is the error of a call whose connection has ended. The server may have carried it out.
type lostError struct{ err error }

func (e lostError) Error() string { return fmt.Sprintf("the connection has ended: %v", e.err) }
func (e lostError) Unwrap() error { return e.err }

// finish ends a call. The caller holds mu.
func (*conn) finish(k *call, err error) {
	k.err = err
	close(k.done)
}

// start queues a call. It returns ErrInvalid for a request that may not be sent, or the error of
// the connection. Otherwise the call ends, and wait must be called.
func (c *conn) start(k *call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return lostError{c.err}
	}
	c.id++
	k.request.ID, k.request.RemainingMillis, k.done = c.id, 1, make(chan struct{})
	if err := k.request.Validate(&c.limits); err != nil {
		return err
	}
	if at := slices.IndexFunc(c.queue, func(k *call) bool { return !k.control() }); k.control() && at >= 0 {
		c.queue = slices.Insert(c.queue, at, k)
	} else {
		c.queue = append(c.queue, k)
	}
	c.notify()
	return nil
}

func (c *conn) notify() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// wait waits for the end of a started call. If ctx ends it fences the call. It returns nil after a
// result of any status.
func (c *conn) wait(ctx context.Context, k *call) (fenced bool, err error) {
	select {
	case <-k.done:
		return false, k.err
	case <-ctx.Done():
	}
	c.fence(k)
	<-k.done
	if k.err != nil {
		return true, fmt.Errorf("%v: %w: %w", k.request.Op, errdefs.ErrCanceled, context.Cause(ctx))
	}
	return true, nil
}

// fence ends a call: it removes a queued one. It cancels a sent one, and closes the connection if
// the server does not confirm that in time.
func (c *conn) fence(k *call) {
	c.mu.Lock()
	if at := slices.Index(c.queue, k); at >= 0 && c.err == nil {
		c.queue = slices.Delete(c.queue, at, at+1)
		c.finish(k, errdefs.ErrCanceled)
	}
	c.mu.Unlock()
	cancel := &call{request: Request{Op: OpCancel, IDs: []uint64{k.request.ID}}, deadline: time.Now().Add(fenceTimeout)}
	select {
	case <-k.done:
		return
	default:
		if c.start(cancel) != nil {
			return // the connection ends
		}
	}
	timer := time.NewTimer(fenceTimeout)
	defer timer.Stop()
	select {
	case <-cancel.done:
		if c.link != nil {
			c.link.settle(k)
		}
		select {
		case <-k.done: // the result precedes that of the cancellation
		default:
			c.fail(errNoFence)
		}
	case <-timer.C:
		c.fail(errNoFence)
	}
}

// write sends requests until the connection ends. It sends a keep-alive when there is none.
func (c *conn) write() error {
	var packer Packer
	var body []byte
	var sent []*call
	keepAlive := time.Duration(c.limits.KeepAliveMillis) * time.Millisecond
	timer := time.NewTimer(keepAlive)
	defer timer.Stop()
	now := time.Now() // at the last wake or flush
	for {
		k := c.next()
		if k == nil && c.w.Buffered() > 0 {
			runtime.Gosched() // other callers may add requests to the same write
			k = c.next()
		}
		if k == nil || c.w.Buffered() >= flushBytes {
			if err := c.flush(&sent); err != nil {
				return err
			}
			now = time.Now()
		}
		if k == nil {
			select {
			case <-c.wake:
				now = time.Now()
			case <-c.stop:
				return nil
			case <-timer.C:
				timer.Reset(keepAlive)
				alive := &call{request: Request{Op: OpKeepAlive}, deadline: time.Now().Add(keepAlive)}
				if err := c.start(alive); err != nil {
					return err
				}
			}
			continue
		}
		left := max(k.deadline.Sub(now).Milliseconds(), 1)
		k.request.RemainingMillis = uint32(min(left, MaxMillis))
		sentByNIC, err := c.sendRemote(k)
		if err != nil {
			return err
		}
		if sentByNIC {
			continue
		}
		sent = append(sent, k)
		if body, err = packer.Request(body[:0], &k.request, &c.limits); err != nil {
			return err
		}
		var data [][]byte
		if k.request.Op == OpStore {
			data = k.memory
		}
		if err := c.w.Append(body, data...); err != nil {
			return err
		}
	}
}

// sendRemote sends a store or retrieve through the queue pair. It reports false if the call must go
// over the socket. A call that cannot do that ends.
func (c *conn) sendRemote(k *call) (done bool, err error) {
	if k.extents == nil {
		return false, nil
	}
	if c.link != nil {
		if done, err = c.link.send(k); done || err != nil {
			return done, err
		}
	}
	if !slices.ContainsFunc(k.memory, func(b []byte) bool { return b == nil }) {
		return false, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.calls, k.request.ID)
	c.credits++
	c.finish(k, fmt.Errorf("device memory that the server cannot reach: %w", errdefs.ErrNotSupported))
	return true, nil
}

// flush sends the appended frames. The calls of sent may end then.
func (c *conn) flush(sent *[]*call) error {
	if err := c.w.Flush(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range *sent {
		if k.written = true; k.answered {
			delete(c.calls, k.request.ID)
			c.finish(k, nil)
		}
	}
	clear(*sent)
	*sent = (*sent)[:0]
	return nil
}

// next takes the next call from the queue, and a credit if it needs one. It returns nil if there is
// none to send.
func (c *conn) next() *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.queue) > 0 && c.queue[0].ctx != nil && c.queue[0].ctx.Err() != nil {
		c.finish(c.queue[0], errdefs.ErrCanceled)
		c.queue = slices.Delete(c.queue, 0, 1)
	}
	if len(c.queue) == 0 || c.err != nil || c.credits == 0 && !c.queue[0].control() {
		return nil
	}
	k := c.queue[0]
	c.queue = slices.Delete(c.queue, 0, 1)
	if !k.control() {
		c.credits--
	}
	c.calls[k.request.ID] = k
	return k
}

// read reads results until the connection ends.
func (c *conn) read() error {
	for {
		if err := c.expect(); err != nil {
			return err
		}
		body, data, err := c.r.Next()
		if err != nil {
			return err
		}
		if err := checkHead(body); err != nil {
			return err
		}
		id := le.Uint64(body[8:])
		c.mu.Lock()
		k := c.calls[id]
		if k != nil && k.rdma {
			k = nil
		}
		c.mu.Unlock()
		if k == nil || k.answered { // only this goroutine sets answered
			return invalid("result of request %d, which is not in progress", id)
		}
		if err := c.receive(k, body, data); err != nil {
			return err
		}
		if err := c.answered(k); err != nil {
			return err
		}
	}
}

// expect sets the time by which the next bytes must arrive, unless that was done not long before.
func (c *conn) expect() error {
	now, keepAlive := time.Now(), time.Duration(c.limits.KeepAliveMillis)*time.Millisecond
	if now.Sub(c.expected) < keepAlive/8 {
		return nil
	}
	c.expected = now
	return c.nc.SetReadDeadline(now.Add(lostAfter * keepAlive))
}

// receive decodes a result, and reads its data to the memory of the call.
func (c *conn) receive(k *call, body []byte, data uint64) error {
	r := &k.result
	if err := r.Decode(body, &c.limits); err != nil {
		return err
	}
	if err := r.Answers(&k.request); err != nil {
		return err
	}
	if r.Epoch != 0 && c.newer != nil {
		c.newer(r.Epoch)
	}
	if want := r.DataBytes(); data != want {
		return invalid("result of %v with %d bytes of data, of %d", r.Op, data, want)
	}
	for i := range r.Entries {
		if r.Op != OpRetrieve || r.Entries[i].Status != StatusOK {
			continue
		}
		if len(k.memory[i]) > c.r.Buffered() {
			if err := c.expect(); err != nil {
				return err
			}
		}
		if err := c.r.ReadData(k.memory[i]); err != nil {
			return err
		}
	}
	return nil
}

// answered takes the credits of a result. It ends the call, unless its request is still being sent.
func (c *conn) answered(k *call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.credits += int64(k.result.Credits); c.credits > MaxCredits {
		return invalid("result with %d credits in addition to %d", k.result.Credits, c.credits-int64(k.result.Credits))
	}
	if k.answered = true; k.written { // otherwise flush ends the call, or end
		delete(c.calls, k.request.ID)
		c.finish(k, nil)
	}
	c.notify()
	return nil
}
