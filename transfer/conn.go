package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/rdma/rail"
)

// lane carries parts to a peer, many at a time and in their order: one goroutine begins them, another ends them. It lives as long as its
// connection, whatever moves the bytes.
type conn struct {
	p       *peer
	to      *Remote // whose alone it is, by what NICs; nil: all of the peer's, over sockets
	nics    nicPair
	number  uint64
	paced   *pacedConn
	quiesce func() // returns when nothing of the lane touches this process's memory, once nothing of it runs; nil: nothing does
	ctx     context.Context
	cancel  context.CancelFunc
	wake    chan struct{}
	done    chan struct{} // closed when nothing of the lane runs any more

	mu    sync.Mutex
	err   error          // why it is dead
	queue []*pendingPart // that are not begun
	sent  []*pendingPart // that are begun, in order
	bytes int64          // of both
	last  uint64         // id of a request
}

// flight is a part on its way by a lane.
type pendingPart struct {
	part *part
	held *rail.Held // what of this process's memory it is about, where NICs move it
	// finish is called once, when nothing of this process touches the part's memory any more.
	finish  func(error)
	id      uint64
	written chan struct{} // closed when the writer is done with it
	cause   error         // what went wrong here, and not with the lane
}

func newConn(p *peer, number uint64, c *pacedConn) *conn {
	ctx, cancel := context.WithCancel(context.Background())
	return &conn{p: p, number: number, paced: c, ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// run has the lane work until one of its goroutines ends.
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

// begin takes a part in. It does not block.
func (c *conn) submit(p *part, held *rail.Held, finish func(error)) (*pendingPart, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.err
	}
	c.last++
	f := &pendingPart{part: p, held: held, finish: finish, id: c.last, written: make(chan struct{})}
	c.queue = append(c.queue, f)
	c.bytes += p.bytes
	c.paced.expect(1)
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return f, nil
}

// abort ends a flight: with the lane, if it is begun.
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
		c.fail(fmt.Errorf("a transfer was given up: %s", why.Error())) // which is no reason of the others'
	}
}

// fail ends the lane. The first cause stays.
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

// reap gives back what was on its way, when nobody reads or writes any more.
func (c *conn) finishAll() {
	c.mu.Lock()
	left := slices.Concat(c.sent, c.queue)
	unfenced := slices.ContainsFunc(c.sent, func(f *pendingPart) bool { return f.part.op == Write })
	err := c.err
	c.sent, c.queue, c.bytes = nil, nil, 0
	c.mu.Unlock()
	c.p.removeConn(c, err, unfenced) // before anybody can send again
	for _, f := range left {
		if f.cause != nil {
			f.finish(f.cause)
		} else {
			f.finish(err)
		}
	}
}

// next returns the next flight to begin, or nil.
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

// sleep waits until there may be more to begin.
func (c *conn) sleep() error {
	select {
	case <-c.wake:
		return nil
	case <-c.ctx.Done():
		return errConnEnded
	}
}

// first returns the flight that was begun before the others, or nil.
func (c *conn) oldest() *pendingPart {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sent) == 0 {
		return nil
	}
	return c.sent[0]
}

// landed ends the first flight.
func (c *conn) complete(verdict error) {
	c.mu.Lock()
	f := c.sent[0]
	c.sent = c.sent[1:]
	c.bytes -= f.part.bytes
	c.mu.Unlock()
	c.paced.expect(-1)
	f.finish(verdict)
}

// errLane is why a lane ends that was told to.
var errConnEnded = errors.New("it was ended")
