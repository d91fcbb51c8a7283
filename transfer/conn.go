package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/rdma/rail"
)

// conn sends parts to a peer over one connection, in order and several at a time. One goroutine
// sends parts and another one completes them. If the bytes use a queue pair, the connection has no
// data, but its end still ends the conn.
type conn struct {
	p *peer
	// to and nics are set for a conn with a queue pair: its segment and its NICs. A conn over
	// sockets serves all segments of the peer; its to is nil.
	to     *Remote
	nics   nicPair
	number uint64
	paced  *pacedConn
	// quiesce waits until local memory is no longer accessed. It is called after all goroutines
	// have returned. Optional.
	quiesce func()
	ctx     context.Context
	cancel  context.CancelFunc
	wake    chan struct{}
	done    chan struct{} // closed when all goroutines of the conn have returned

	mu    sync.Mutex
	err   error          // reason for which the connection ended, or nil
	queue []*pendingPart // parts to send
	sent  []*pendingPart // parts sent and not completed, in order
	bytes int64          // total length of the parts in queue and sent
	last  uint64         // last request ID
}

// pendingPart is a part that a conn has accepted.
type pendingPart struct {
	part  *part
	lease *rail.Lease // lease on the part's local memory if NICs transfer it
	// finish is called once, when this process no longer accesses the part's memory.
	finish  func(error)
	id      uint64
	written chan struct{} // closed when the writer no longer uses the part
	cause   error         // local failure of this part, or nil
}

func newConn(p *peer, number uint64, c *pacedConn) *conn {
	ctx, cancel := context.WithCancel(context.Background())
	return &conn{p: p, number: number, paced: c, ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// run starts the goroutines of the conn. When one of them returns, the conn ends.
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

// abort ends a part early. If the part was already sent, it ends the conn.
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
		// Only the text of the cause: errors.Is must not match it for other parts.
		c.fail(fmt.Errorf("a transfer was abandoned: %s", why.Error()))
	}
}

// fail ends the conn with err. Only the first error is kept.
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

// finishAll finishes all remaining parts with the conn's error. All goroutines must have returned.
func (c *conn) finishAll() {
	c.mu.Lock()
	left := slices.Concat(c.sent, c.queue)
	unfenced := slices.ContainsFunc(c.sent, func(f *pendingPart) bool { return f.part.op == Write })
	err := c.err
	c.sent, c.queue, c.bytes = nil, nil, 0
	c.mu.Unlock()
	c.p.removeConn(c, err, unfenced) // before finish queues the parts for another conn
	for _, f := range left {
		if f.cause != nil {
			f.finish(f.cause)
		} else {
			f.finish(err)
		}
	}
}

// next removes the next part from the queue and returns it, or nil.
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

// sleep waits until the queue may have a part. It returns an error if the conn ends.
func (c *conn) sleep() error {
	select {
	case <-c.wake:
		return nil
	case <-c.ctx.Done():
		return errConnEnded
	}
}

// oldest returns the sent part that was sent first, or nil.
func (c *conn) oldest() *pendingPart {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sent) == 0 {
		return nil
	}
	return c.sent[0]
}

// complete finishes the oldest sent part. verdict is its result.
func (c *conn) complete(verdict error) {
	c.mu.Lock()
	f := c.sent[0]
	c.sent = c.sent[1:]
	c.bytes -= f.part.bytes
	c.mu.Unlock()
	c.paced.expect(-1)
	f.finish(verdict)
}

// errConnEnded is returned by goroutines of a conn that has ended for another reason.
var errConnEnded = errors.New("it was closed")
