// Package unwind closes acquired resources in reverse order. If one is still in use, closing can be
// continued later.
package unwind

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kvlane/kvlane/errdefs"
)

// Timeout is the maximum time for closing resources after a failed open. Only probes and
// measurements have used them, so closing normally takes milliseconds.
const Timeout = 30 * time.Second

// Stack is a list of acquired resources that are closed in reverse order. Add must be called by one
// goroutine at a time. Close is safe for concurrent use.
type Stack struct {
	closeLock chan struct{} // mutex whose lock can be canceled; held during Close
	list      []closer      // in order of acquisition; after the open, guarded by closeLock
}

// closer closes one resource. It may return an error although the resource is closed; then a second
// call returns nil.
type closer struct {
	what  string
	close func(context.Context) error
}

// New returns an empty stack.
func New() Stack { return Stack{closeLock: make(chan struct{}, 1)} }

// Add adds a resource with its name.
func (c *Stack) Add(what string, f func(context.Context) error) {
	c.list = append(c.list, closer{what, f})
}

// AddPlain adds a resource that closes without waiting.
func (c *Stack) AddPlain(what string, f func() error) {
	c.Add(what, func(context.Context) error { return f() })
}

// Close closes all resources. It stops at the first failure, because that resource may still use
// resources acquired earlier. The error contains the names of the remaining resources. Close may be
// retried.
func (c *Stack) Close(ctx context.Context) error {
	select {
	case c.closeLock <- struct{}{}:
	default:
		select {
		case c.closeLock <- struct{}{}:
		case <-ctx.Done():
			return fmt.Errorf("another goroutine is still closing it: %w: %w", errdefs.ErrCanceled, context.Cause(ctx))
		}
	}
	defer func() { <-c.closeLock }()
	var reported error
	for len(c.list) > 0 {
		last := c.list[len(c.list)-1]
		if err := last.close(ctx); err != nil {
			reported = errors.Join(reported, err)
			if ctx.Err() != nil || last.close(ctx) != nil {
				return fmt.Errorf("%s are still open: %w", c.openNames(), reported)
			}
		}
		c.list = c.list[:len(c.list)-1]
	}
	return reported
}

// Undo is like Close, for resources that cannot be closed later. It ignores the end of ctx and
// stops after limit.
func (c *Stack) Undo(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	return c.Close(ctx)
}

// openNames returns the names of open resources.
func (c *Stack) openNames() string {
	names := make([]string, len(c.list))
	for i, o := range c.list {
		names[i] = o.what
	}
	return strings.Join(names, ", ")
}
