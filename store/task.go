package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
)

// task is what loads, dumps and prefetches have in common.
type task struct {
	s      *Store
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{}

	mu   sync.Mutex
	errs []error             // one a block
	went []stream.Completion // one a batch
}

func (t *task) init(parent context.Context, s *Store, n int) {
	t.s = s
	t.ctx, t.cancel = context.WithCancelCause(parent)
	t.done = make(chan struct{})
	t.errs = make([]error, n)
}

// Done is closed when the task has resolved, well or badly: every block has its result, and nothing touches the task's
// pages or slots any more.
func (t *task) Done() <-chan struct{} { return t.done }

// Cancel asks the task to do no more. What was issued to hardware is waited for: the task resolves when that has
// stopped, and its unfinished blocks fail with ErrCanceled. It does not wait.
func (t *task) Cancel() { t.cancel(errdefs.ErrCanceled) }

// Errs returns one error a block, nil for those that succeeded. Before Done is closed it returns nil.
func (t *task) Errs() []error {
	select {
	case <-t.done:
		return slices.Clone(t.errs)
	default:
		return nil
	}
}

// Paths returns how the batches that have resolved so far travelled, in the order in which they did.
func (t *task) Paths() []stream.Completion {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.went)
}

// travelled notes a resolved ticket of l.
func (t *task) travelled(l *lane, all *tally, tk *stream.Ticket) {
	l.resolved.Add(1)
	c := tk.Completion()
	all.add(c)
	t.mu.Lock()
	t.went = append(t.went, c)
	t.mu.Unlock()
}

// wait waits for c and returns the joined errors of the blocks, or the context's cause if ctx ends first.
func (t *task) wait(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return t.joined()
	default:
	}
	select {
	case <-c:
		return t.joined()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *task) joined() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(t.errs...)
}

// set notes why block i failed.
func (t *task) set(i int32, verb string, key block.Key, err error) {
	if err == nil {
		return
	}
	if t.ctx.Err() != nil && !errors.Is(err, context.Cause(t.ctx)) {
		// The task was canceled: that decides, and what a tier or stream made of it is the detail.
		err = fmt.Errorf("%w: %w", context.Cause(t.ctx), err)
	}
	err = fmt.Errorf("%s block %s: %w", verb, key, err)
	t.mu.Lock()
	t.errs[i] = err
	t.mu.Unlock()
}
