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
	"github.com/kvlane/kvlane/stream/renew"
)

// task is what loads, dumps and prefetches have in common.
type task struct {
	s      *Store
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{}
	blocks int

	mu      sync.Mutex
	errs    []error              // one a block, once one has failed
	late    error                // of a load: why none of its blocks is to be trusted, until that is in errs
	settled bool                 // of a load: late is not set any more
	went    []stream.Completion  // one a batch
	one     [1]stream.Completion // room for them
}

// BlockError says why a task failed for one block. It is what Errs returns, and what the errors of Wait and Durable join.
type BlockError struct {
	Op   string // "load", "dump" or "prefetch"
	Key  block.Key
	Page uint32 // of a load or dump
	// Undefined says that a load may have written to the page, and that what it wrote is not, or not known to be, the block:
	// nobody may use the page before it has been written anew. Where it is false the page is as it was. Shards that
	// WaitShard handed out before the block failed stay right.
	Undefined bool
	Err       error
}

// Error returns what failed, for which block, and why.
func (e *BlockError) Error() string {
	if e.Undefined {
		return fmt.Sprintf("%s block %s: page %d is undefined: %v", e.Op, e.Key, e.Page, e.Err)
	}
	return fmt.Sprintf("%s block %s: %v", e.Op, e.Key, e.Err)
}

// Unwrap returns the cause.
func (e *BlockError) Unwrap() error { return e.Err }

func (t *task) init(parent context.Context, s *Store, n int) {
	t.s = s
	t.ctx, t.cancel = context.WithCancelCause(parent)
	t.done = make(chan struct{})
	t.went = t.one[:0]
	t.blocks = n
}

// Done is closed when the task has resolved, well or badly: every block has its result, and nothing touches the task's
// pages or slots any more.
func (t *task) Done() <-chan struct{} { return t.done }

// Cancel asks the task to do no more. What was issued to hardware is waited for: the task resolves when that has
// stopped, and its unfinished blocks fail with ErrCanceled. It does not wait.
func (t *task) Cancel() { t.cancel(errdefs.ErrCanceled) }

// Errs returns one error a block, each a *BlockError, nil for those that succeeded. Before Done is closed it returns nil.
func (t *task) Errs() []error {
	select {
	case <-t.done:
		return append(make([]error, 0, t.blocks), t.errs...)[:t.blocks]
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

// travelled notes a flight of l whose ticket has resolved.
func (t *task) travelled(l *renew.Stream, all *tally, f *flight) {
	l.Resolved()
	tk := f.ticket
	c := tk.Completion()
	all.add(c, f.submitted)
	if err := tk.Err(); err != nil && t.ctx.Err() == nil {
		t.s.count.batchesFailed.Add(1)
		t.s.cfg.Hooks.batchFailed(l.Name(), err)
	}
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
	if t.late != nil {
		return errors.Join(append(slices.Clip(t.errs), t.late)...)
	}
	return errors.Join(t.errs...)
}

// set notes why block i failed.
func (t *task) set(i int32, e BlockError) {
	if t.ctx.Err() != nil && !errors.Is(e.Err, context.Cause(t.ctx)) {
		// The task was canceled: that decides, and what a tier or stream made of it is the detail.
		e.Err = fmt.Errorf("%w: %w", context.Cause(t.ctx), e.Err)
	}
	t.mu.Lock()
	if t.errs == nil {
		t.errs = make([]error, t.blocks)
	}
	t.errs[i] = &e
	t.mu.Unlock()
}
