// Package inuse tracks the tasks that use memory, so that releasing the memory can wait for them.
// It is safe for concurrent use, except that a Use has one owner.
package inuse

import (
	"context"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
)

// Set is the uses of a memory region. The zero value is empty.
type Set struct {
	mu     sync.Mutex
	closed bool   // guarded by mu
	uses   []*Use // guarded by mu: uses in progress, and some ended ones
	many   int    // guarded by mu: length of uses at which ended ones are removed
}

// Use is a task on the memory, from before it starts.
type Use struct {
	started chan struct{}
	ended   func(context.Context) error
}

// Begin adds a task that is about to start. The caller must call Started in any case. It returns
// ErrClosed after Close.
func (s *Set) Begin() (*Use, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errdefs.ErrClosed
	}
	if len(s.uses) >= s.many {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		s.uses = slices.DeleteFunc(s.uses, func(u *Use) bool { return u.wait(now) == nil })
		s.many = 2*len(s.uses) + 64
	}
	u := &Use{started: make(chan struct{})}
	s.uses = append(s.uses, u)
	return u, nil
}

// Started sets the function that waits for the end of the task. ended returns nil when the task no
// longer uses the memory, even if ctx has ended, or else the cause of ctx. A nil ended means that
// the task did not start.
func (u *Use) Started(ended func(ctx context.Context) error) {
	u.ended = ended
	close(u.started)
}

func (u *Use) wait(ctx context.Context) error {
	if err := Wait(ctx, u.started); err != nil || u.ended == nil {
		return err
	}
	return u.ended(ctx)
}

// Close rejects further tasks and waits until none uses the memory, or returns the cause of ctx. It
// may be called again.
func (s *Set) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	uses := s.uses
	s.mu.Unlock()
	for _, u := range uses {
		if err := u.wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Wait waits until done is closed and returns nil, even if ctx has ended. It returns the cause of
// ctx if that ends first.
func Wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	default:
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
