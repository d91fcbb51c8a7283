package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/rdma/rail"
)

// conn carries parts to a peer in order, several at a time. One goroutine sends them and another
// one completes them. It ends with its connection, whether the bytes use that connection or a queue
// pair.
type conn struct {
	p *peer
	// to is nil for a conn over sockets, which serves all segments of the peer. Else it is the
	// segment of a queue pair, and nics are its NICs.
	to     *Remote
	nics   nicPair
	number uint64
	paced  *pacedConn
	// quiesce waits until nothing touches local memory, after all goroutines have returned; or nil.
	quiesce func()
	ctx     context.Context
	cancel  context.CancelFunc
	wake    chan struct{}
	done    chan struct{} // closed when all goroutines of conn have returned

	mu    sync.Mutex
	err   error          // why the connection ended, or nil
	queue []*pendingPart // not sent
	sent  []*pendingPart // sent and not completed, in order
	bytes int64          // of queue and sent
	last  uint64         // last id of a request
}

// pendingPart is a part that a conn carries.
type pendingPart struct {
	part  *part
	lease *rail.Lease // local memory of the part, if NICs move it
	// finish is called once, when this process no longer touches the part's memory.
	finish  func(error)
	id      uint64
	written chan struct{} // closed when the writer no longer uses the part
	cause   error         // local failure of this part, or nil
}

func newConn(p *peer, number uint64, c *pacedConn) *conn {
	ctx, cancel := context.WithCancel(context.Background())
	return &conn{p: p, number: number, paced: c, ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// run starts the goroutines of the conn. If one returns, the conn ends.
func (c *conn) run(work ...func() error) {
	var all sync.WaitGroup
	for _, f := range work {
		all.Go(func() { c.fail(f()) })
	}
	go func() {
		all.Wait()
		if c.quiesce != nil {
			c.quiesce()
		}
		c.finishAll()
		close(c.done)
	}()
}

func (c *conn) load() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}

// submit queues a part. It does not block.
func (c *conn) submit(p *part, lease *rail.Lease, finish func(error)) (*pendingPart, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.err
	}
	c.last++
	f := &pendingPart{part: p, lease: lease, finish: finish, id: c.last, written: make(chan struct{})}
	c.queue = append(c.queue, f)
	c.bytes += p.bytes
	c.paced.expect(1)
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return f, nil
}

// abort ends a part early. If the part was sent, the conn ends.
func (c *conn) abort(f *pendingPart, why error) {
	c.mu.Lock()
	i := slices.Index(c.queue, f)
	begun := slices.Contains(c.sent, f)
	if i >= 0 {
		c.queue = slices.Delete(c.queue, i, i+1)
		c.bytes -= f.part.bytes
		c.paced.expect(-1)
	}
	c.mu.Unlock()
	switch {
	case i >= 0:
		f.finish(why)
	case begun:
		// The text only: the cause is not one of the other parts.
		c.fail(fmt.Errorf("a transfer was abandoned: %s", why.Error()))
	}
}

// fail ends the conn. The first error is kept.
func (c *conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = fmt.Errorf("connection to %s: %w", c.p.addr, err)
	c.cancel()
	_ = c.paced.Close()
}

// finishAll finishes all parts with an error. All goroutines have returned.
func (c *conn) finishAll() {
	c.mu.Lock()
	left := slices.Concat(c.sent, c.queue)
	unfenced := slices.ContainsFunc(c.sent, func(f *pendingPart) bool { return f.part.op == Write })
	err := c.err
	c.sent, c.queue, c.bytes = nil, nil, 0
	c.mu.Unlock()
	c.p.removeConn(c, err, unfenced) // before the parts are sent by another conn
	for _, f := range left {
		if f.cause != nil {
			f.finish(f.cause)
		} else {
			f.finish(err)
		}
	}
}

// next returns the next part to send, or nil.
func (c *conn) next() *pendingPart {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) == 0 || c.err != nil {
		return nil
	}
	f := c.queue[0]
	c.queue = c.queue[1:]
	c.sent = append(c.sent, f)
	return f
}

// sleep waits until there may be a part to send.
func (c *conn) sleep() error {
	select {
	case <-c.wake:
		return nil
	case <-c.ctx.Done():
		return errConnEnded
	}
}

// oldest returns the part that was sent first, or nil.
func (c *conn) oldest() *pendingPart {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sent) == 0 {
		return nil
	}
	return c.sent[0]
}

// complete finishes the oldest part with that result.
func (c *conn) complete(verdict error) {
	c.mu.Lock()
	f := c.sent[0]
	c.sent = c.sent[1:]
	c.bytes -= f.part.bytes
	c.mu.Unlock()
	c.paced.expect(-1)
	f.finish(verdict)
}

// errConnEnded is returned by goroutines of a conn that has ended.
var errConnEnded = errors.New("it was closed")
