package kvlane

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kvlane/kvlane/errdefs"
)

// undoTimeout bounds the closing of what could not be opened whole, or is not wanted after all. Nothing has been copied there but
// by those who tried and measured, so it takes milliseconds where all is well.
const undoTimeout = 30 * time.Second

// closers close what was acquired, backwards. Adding is for whoever opens; close is safe for concurrent use.
type closers struct {
	turn chan struct{} // a lock that is waited for with a context: one close at a time
	list []closer      // in order of acquiring; guarded by turn once all is open
}

// closer closes one thing. One that fails to, may tell so and have closed it all the same; called again, it then returns nil.
type closer struct {
	what  string
	close func(context.Context) error
}

func newClosers() closers { return closers{turn: make(chan struct{}, 1)} }

func (c *closers) add(what string, f func(context.Context) error) {
	c.list = append(c.list, closer{what, f})
}

// addPlain adds what closes without waiting.
func (c *closers) addPlain(what string, f func() error) {
	c.add(what, func(context.Context) error { return f() })
}

// close closes everything. It stops at what does not close, as that may still use all that is below, says what is left, and may
// be called again. Once all is closed it returns nil.
func (c *closers) close(ctx context.Context) error {
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

// undo is close for what nobody can close later. It gives up after a while.
func (c *closers) undo(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	return c.close(ctx)
}

// left names what is open.
func (c *closers) left() string {
	names := make([]string, len(c.list))
	for i, o := range c.list {
		names[i] = o.what
	}
	return strings.Join(names, ", ")
}
