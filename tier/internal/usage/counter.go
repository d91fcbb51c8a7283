package usage

import (
	"sync"

	"github.com/kvlane/kvlane/errdefs"
)

// OpCounter counts the operations in progress, so that Close can wait for them.
type OpCounter struct {
	mu     sync.Mutex
	closed bool
	active int
	total  int64
	Idle   chan struct{} // closed after Close, when no operation is in progress
}

// Init makes the counter ready for use.
func (c *OpCounter) Init() { c.Idle = make(chan struct{}) }

// BeginOp counts an operation. It returns ErrClosed after Close.
func (c *OpCounter) BeginOp() error {
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
		close(c.Idle)
	}
}

// Close refuses further operations. It may be called again.
func (c *OpCounter) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	if c.active == 0 {
		close(c.Idle)
	}
}

// Count returns the number of operations in progress, and of all operations so far.
func (c *OpCounter) Count() (active int, total int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.active, c.total
}
