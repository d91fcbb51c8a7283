package usage

import (
	"context"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
)

// OpCounter counts running operations, so that Close can wait for them.
type OpCounter struct {
	mu     sync.Mutex
	closed bool
	active int
	total  int64
	idle   chan struct{} // closed when the counter is closed and no operation is running

	// releasing holds an element during a Release. Unlike a mutex it can be awaited with a context.
	releasing chan struct{}
	released  bool // guarded by releasing
}

// Init makes the counter ready for use.
func (c *OpCounter) Init() { c.idle, c.releasing = make(chan struct{}), make(chan struct{}, 1) }

// BeginOp starts an operation. It returns ErrClosed after Close, and the cause of ctx if ctx has
// ended.
func (c *OpCounter) BeginOp(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errdefs.ErrClosed
	}
	c.active++
	c.total++
	return nil
}

// EndOp ends an operation.
func (c *OpCounter) EndOp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active--; c.active == 0 && c.closed {
		close(c.idle)
	}
}

// Close refuses further operations. It does not wait. It may be called again.
func (c *OpCounter) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	if c.active == 0 {
		close(c.idle)
	}
}

// Count returns the number of running operations, and the number of all operations so far.
func (c *OpCounter) Count() (active int, total int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.active, c.total
}

// Release waits until the counter is closed and idle and the channels of ended are closed. Then it
// calls release, unless an earlier Release has called it. It returns ErrBusy if ctx ends first.
func (c *OpCounter) Release(ctx context.Context, ended []<-chan struct{}, release func() error) error {
	busy := func() error {
		active, _ := c.Count()
		return fmt.Errorf("%d reads and writes have not ended: %w: %w", active, errdefs.ErrBusy, context.Cause(ctx))
	}
	select {
	case c.releasing <- struct{}{}:
		defer func() { <-c.releasing }()
	case <-ctx.Done():
		return busy()
	}
	if c.released {
		return nil
	}
	for _, e := range append(ended, c.idle) {
		select {
		case <-e:
		case <-ctx.Done():
			return busy()
		}
	}
	c.released = true
	return release()
}
