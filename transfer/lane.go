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
type lane struct {
	p      *peer
	to     *Remote // whose alone it is, by what NICs; nil: all of the peer's, over sockets
	by     rails
	number uint64
	conn   *pacedConn
	quiet  func() // returns when nothing of the lane touches this process's memory, once nothing of it runs; nil: nothing does
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{}
	over   chan struct{} // closed when nothing of the lane runs any more

	mu    sync.Mutex
	err   error     // why it is dead
	queue []*flight // that are not begun
	sent  []*flight // that are begun, in order
	bytes int64     // of both
	last  uint64    // id of a request
}

// flight is a part on its way by a lane.
type flight struct {
	part *part
	held *rail.Held // what of this process's memory it is about, where NICs move it
	// finish is called once, when nothing of this process touches the part's memory any more.
	finish  func(error)
	id      uint64
	written chan struct{} // closed when the writer is done with it
	cause   error         // what went wrong here, and not with the lane
}

func newLane(p *peer, number uint64, c *pacedConn) *lane {
	ctx, cancel := context.WithCancel(context.Background())
	return &lane{p: p, number: number, conn: c, ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1), over: make(chan struct{})}
}

// run has the lane work until one of its goroutines ends.
func (l *lane) run(work ...func() error) {
	var all sync.WaitGroup
	for _, f := range work {
		all.Go(func() { l.fail(f()) })
	}
	go func() {
		all.Wait()
		if l.quiet != nil {
			l.quiet()
		}
		l.reap()
		close(l.over)
	}()
}

func (l *lane) load() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes
}

// begin takes a part in. It does not block.
func (l *lane) begin(p *part, held *rail.Held, finish func(error)) (*flight, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, l.err
	}
	l.last++
	f := &flight{part: p, held: held, finish: finish, id: l.last, written: make(chan struct{})}
	l.queue = append(l.queue, f)
	l.bytes += p.bytes
	l.conn.expect(1)
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return f, nil
}

// abort ends a flight: with the lane, if it is begun.
func (l *lane) abort(f *flight, why error) {
	l.mu.Lock()
	i := slices.Index(l.queue, f)
	begun := slices.Contains(l.sent, f)
	if i >= 0 {
		l.queue = slices.Delete(l.queue, i, i+1)
		l.bytes -= f.part.bytes
		l.conn.expect(-1)
	}
	l.mu.Unlock()
	switch {
	case i >= 0:
		f.finish(why)
	case begun:
		l.fail(fmt.Errorf("a transfer was given up: %s", why.Error())) // which is no reason of the others'
	}
}

// fail ends the lane. The first cause stays.
func (l *lane) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.err = fmt.Errorf("connection to %s: %w", l.p.addr, err)
	l.cancel()
	_ = l.conn.Close()
}

// reap gives back what was on its way, when nobody reads or writes any more.
func (l *lane) reap() {
	l.mu.Lock()
	left := slices.Concat(l.sent, l.queue)
	owed := slices.ContainsFunc(l.sent, func(f *flight) bool { return f.part.op == Write })
	err := l.err
	l.sent, l.queue, l.bytes = nil, nil, 0
	l.mu.Unlock()
	l.p.drop(l, err, owed) // before anybody can send again
	for _, f := range left {
		if f.cause != nil {
			f.finish(f.cause)
		} else {
			f.finish(err)
		}
	}
}

// next returns the next flight to begin, or nil.
func (l *lane) next() *flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 || l.err != nil {
		return nil
	}
	f := l.queue[0]
	l.queue = l.queue[1:]
	l.sent = append(l.sent, f)
	return f
}

// sleep waits until there may be more to begin.
func (l *lane) sleep() error {
	select {
	case <-l.wake:
		return nil
	case <-l.ctx.Done():
		return errLane
	}
}

// first returns the flight that was begun before the others, or nil.
func (l *lane) first() *flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.sent) == 0 {
		return nil
	}
	return l.sent[0]
}

// landed ends the first flight.
func (l *lane) landed(verdict error) {
	l.mu.Lock()
	f := l.sent[0]
	l.sent = l.sent[1:]
	l.bytes -= f.part.bytes
	l.mu.Unlock()
	l.conn.expect(-1)
	f.finish(verdict)
}

// errLane is why a lane ends that was told to.
var errLane = errors.New("it was ended")
