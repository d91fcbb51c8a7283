// Package inuse tracks the tasks that use a memory region, so that releasing the region can wait
// for them. A Set is safe for concurrent use. A Use must be used by one goroutine at a time.
package inuse

import (
	"context"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
)

// Set is the set of tasks that use a memory region. The zero value is empty.
type Set struct {
	mu     sync.Mutex
	closed bool   // guarded by mu
	uses   []*Use // guarded by mu; uses in progress, and ended ones that were not removed yet
	many   int    // guarded by mu; ended uses are removed when uses has this length
}

// Use is the registration of one task. It begins before the task starts.
type Use struct {
	started chan struct{}
	ended   func(context.Context) error
}

// Begin registers a task that is about to start. The caller must call Started in every case. It
// returns ErrClosed after Close.
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

// Started sets the function that waits for the end of the task. ended must return nil if the task
// no longer uses the memory, even if ctx has ended, otherwise the cause of ctx. A nil ended means
// that the task did not start.
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

// Close refuses further tasks and waits until no task uses the memory. If ctx ends first, it
// returns the cause of ctx and may be retried.
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

// Wait waits until done is closed. If done is already closed, it returns nil even if ctx has ended.
// If ctx ends first, it returns the cause of ctx.
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
