// Package unwind closes what was acquired, in reverse order, and goes on later where something is still in use.
package unwind

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kvlane/kvlane/errdefs"
)

// Timeout bounds the closing of what could not be opened whole, or is not wanted after all. Nothing has been copied there but by
// those who tried and measured, so it takes milliseconds where all is well.
const Timeout = 30 * time.Second

// Stack closes what was acquired, backwards. Adding is for whoever opens; Close is safe for concurrent use.
type Stack struct {
	turn chan struct{} // a lock that is waited for with a context: one close at a time
	list []closer      // in order of acquiring; guarded by turn once all is open
}

// closer closes one thing. One that fails to, may tell so and have closed it all the same; called again, it then returns nil.
type closer struct {
	what  string
	close func(context.Context) error
}

// New returns an empty stack.
func New() Stack { return Stack{turn: make(chan struct{}, 1)} }

// Add adds something with what it is.
func (c *Stack) Add(what string, f func(context.Context) error) {
	c.list = append(c.list, closer{what, f})
}

// AddPlain adds what closes without waiting.
func (c *Stack) AddPlain(what string, f func() error) {
	c.Add(what, func(context.Context) error { return f() })
}

// Close closes everything. It stops at what does not close, as that may still use all that is below, says what is left, and may
// be called again. Once all is closed it returns nil.
func (c *Stack) Close(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}:
	default:
		select {
		case c.turn <- struct{}{}:
		case <-ctx.Done():
			return fmt.Errorf("another is still closing it: %w: %w", errdefs.ErrCanceled, context.Cause(ctx))
		}
	}
	defer func() { <-c.turn }()
	var told error
	for len(c.list) > 0 {
		last := c.list[len(c.list)-1]
		if err := last.close(ctx); err != nil {
			told = errors.Join(told, err)
			if ctx.Err() != nil || last.close(ctx) != nil {
				return fmt.Errorf("%s are still open: %w", c.left(), told)
			}
		}
		c.list = c.list[:len(c.list)-1]
	}
	return told
}

// Undo is Close for what nobody can close later, whether ctx has ended or not. It gives up after limit.
func (c *Stack) Undo(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	return c.Close(ctx)
}

// left names what is open.
func (c *Stack) left() string {
	names := make([]string, len(c.list))
	for i, o := range c.list {
		names[i] = o.what
	}
	return strings.Join(names, ", ")
}
