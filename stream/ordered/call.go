package ordered

import (
	"context"
)

// call is a call that keeps its place among the batches.
type call struct {
	act  func() (ok bool, err error)
	undo func()
	done chan struct{} // closed when err is valid
	err  error
	// abandoned: nobody waits any more. Guarded by Stream.mu.
	abandoned bool
	stream    *Stream
}

// Call calls act when all batches that were accepted before have been issued whole, and returns its error; nothing else is
// issued meanwhile. ok is false where it has to wait for what is in flight, as in Work.Issue. If ctx ends first, act is not called any more,
// or undone if it went well.
func (s *Stream) Call(ctx context.Context, act func() (ok bool, err error), undo func()) error {
	c := &call{act: act, undo: undo, done: make(chan struct{}), stream: s}
	b := &Batch{call: c}
	if err := s.enter(ctx, b); err != nil {
		return err
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-c.done: // it was faster
		return c.err
	default:
		c.abandoned = true
		b.Cancel()
		return context.Cause(ctx)
	}
}

// issue is Work.Issue.
func (c *call) issue() (whole, ok bool) {
	ok, c.err = c.act()
	return ok, ok
}

// end is called once, with the mutex held: the call was made, or why it was not.
func (c *call) end(why error) {
	switch {
	case why != nil:
		c.err = why
	case c.abandoned && c.err == nil && c.undo != nil:
		c.undo()
	}
	close(c.done)
}
