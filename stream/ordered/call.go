package ordered

import (
	"context"
)

// call is a function call that is ordered among the batches.
type call struct {
	act  func() (ok bool, err error)
	undo func()
	done chan struct{} // closed when err is valid
	err  error
	// abandoned is set when the caller of Call has stopped waiting. Guarded by Stream.mu.
	abandoned bool
	stream    *Stream
}

// Call runs act after all previously accepted batches have been completely issued, and returns its
// error. Nothing else is issued meanwhile. If act returns false for ok, it is run again later, like
// Work.Issue. If ctx ends first, act is not started; if it was already started and succeeds, undo
// is run.
func (s *Stream) Call(ctx context.Context, act func() (ok bool, err error), undo func()) error {
	c := &call{act: act, undo: undo, done: make(chan struct{}), stream: s}
	b := &Batch{call: c}
	if err := s.enqueue(ctx, b); err != nil {
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
	case <-c.done: // act has finished first
		return c.err
	default:
		c.abandoned = true
		b.Cancel()
		return context.Cause(ctx)
	}
}

// issue implements the contract of Work.Issue.
func (c *call) issue() (whole, ok bool) {
	ok, c.err = c.act()
	return ok, ok
}

// end completes the call. why is the reason why act did not run, or nil. It is called once, with mu
// held.
func (c *call) end(why error) {
	switch {
	case why != nil:
		c.err = why
	case c.abandoned && c.err == nil && c.undo != nil:
		c.undo()
	}
	close(c.done)
}
