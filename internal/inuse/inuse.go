// Package inuse knows what still touches memory that is to be taken back, so that taking it back waits. Safe for concurrent use, but for a
// Use, which has one owner.
package inuse

import (
	"context"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
)

// Set is the uses of some memory. The zero value has none.
type Set struct {
	mu     sync.Mutex
	closed bool   // guarded by mu
	uses   []*Use // guarded by mu: those that may still touch the memory, and some that do not any more
	many   int    // guarded by mu: uses are looked through when there are as many
}

// Use is a task on the memory, from before it starts.
type Use struct {
	started chan struct{}
	ended   func(context.Context) error
}

// Begin notes a task that is about to start, and for which Started is called whatever comes of it. ErrClosed after Close.
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

// Started says how the task's end is waited for: ended returns nil once it does not touch the memory any more, or ctx's cause, and nil
// though ctx has ended. A nil ended is of a task that did not start.
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

// Len returns how many tasks are noted, of which some may have ended.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.uses)
}

// Close refuses further tasks and waits until none touches the memory any more, or returns ctx's cause. It may be called again.
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

// Wait waits until done is closed, and returns nil, also where ctx has ended then; or until ctx ends, and returns its cause.
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
