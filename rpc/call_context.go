package rpc

import (
	"context"
	"sync"
	"time"
)

// checkContext panics for a context of nil, as package net does.
func checkContext(ctx context.Context) {
	if ctx == nil {
		panic("rpc: nil context")
	}
}

// callContext is the context of a handler. It ends with the handler, with the connection and at the
// deadline. Most handlers do not wait for its end: only for those it makes a context of its own. It
// is safe for concurrent use after begin.
type callContext struct {
	conn     context.Context // nil before begin
	deadline time.Time       // zero: none
	call     *Call

	mu     sync.Mutex
	own    context.Context // child of conn; nil: not needed yet
	cancel context.CancelFunc
	ended  bool
}

// begin sets the parent context and the deadline, if it is not zero.
func (c *callContext) begin(conn context.Context, deadline time.Time, call *Call) {
	c.conn, c.deadline, c.call = conn, deadline, call
}

// end cancels the context.
func (c *callContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.cancel != nil {
		c.cancel()
	}
}

// context returns a context that implements this one.
func (c *callContext) context() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.own == nil {
		if c.deadline.IsZero() {
			c.own, c.cancel = context.WithCancel(c.conn)
		} else {
			c.own, c.cancel = context.WithDeadline(c.conn, c.deadline)
		}
		if c.ended {
			c.cancel()
		}
	}
	return c.own
}

// Deadline returns the deadline that the client has sent.
func (c *callContext) Deadline() (time.Time, bool) { return c.deadline, !c.deadline.IsZero() }

// Done returns a channel that is closed when the context ends.
func (c *callContext) Done() <-chan struct{} { return c.context().Done() }

// Err returns the reason for the end of the context.
func (c *callContext) Err() error { return c.context().Err() }

// Value returns the call, or the value of the connection's context.
func (c *callContext) Value(key any) any {
	switch key {
	case callKey{}:
		return c.call
	case connKey{}:
		return c.conn.Value(key)
	}
	return c.context().Value(key) // package context finds the own context by a value
}
