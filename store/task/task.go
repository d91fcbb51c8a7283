// Package task has the common parts of loads, dumps and prefetches: their results, their refs, and
// the scheduler that bounds and ends them.
package task

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/store/stat"
	"github.com/kvlane/kvlane/stream"
)

// Task holds the context, the results and the completions of one load, dump or prefetch. All
// methods are safe for concurrent use.
type Task struct {
	p      *pipeline.Pipeline
	sched  *Scheduler
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{}
	blocks int

	mu          sync.Mutex
	errs        []error             // by block, once one has failed
	expiredErr  error               // set when the load has expired, until it is in errs
	finished    bool                // the load can no longer expire
	completions []stream.Completion // by batch
	first       [1]stream.Completion
}

// BlockError is the error of one block of a task. Errs returns BlockErrors, and Wait and Durable
// join them.
type BlockError struct {
	Op   string // "load", "dump" or "prefetch"
	Key  block.Key
	Page uint32 // of a load or dump
	// Undefined is set if a load may have written wrong bytes to the page. The page must then be
	// written before it is used. Otherwise the page is unchanged. Shards that WaitShard reported
	// before the block failed remain valid.
	Undefined bool
	Err       error
}

// Error returns the operation, the block and the cause.
func (e *BlockError) Error() string {
	if e.Undefined {
		return fmt.Sprintf("%s block %s: page %d is undefined: %v", e.Op, e.Key, e.Page, e.Err)
	}
	return fmt.Sprintf("%s block %s: %v", e.Op, e.Key, e.Err)
}

// Unwrap returns the cause.
func (e *BlockError) Unwrap() error { return e.Err }

// New returns a task of n blocks. The caller has called Scheduler.Begin for it.
func New(p *pipeline.Pipeline, s *Scheduler, kind Kind, n int) *Task {
	t := &Task{p: p, sched: s, done: make(chan struct{}), blocks: n}
	t.ctx, t.cancel = context.WithCancelCause(s.context(kind))
	t.completions = t.first[:0]
	return t
}

// Context returns the context of the task. It ends when the task is canceled or has ended.
func (t *Task) Context() context.Context { return t.ctx }

// Blocks returns the number of blocks.
func (t *Task) Blocks() int { return t.blocks }

// Done returns a channel that is closed when the task has ended.
func (t *Task) Done() <-chan struct{} { return t.done }

// Cancel cancels the task. It does not wait.
func (t *Task) Cancel() { t.cancel(errdefs.ErrCanceled) }

// CancelCause cancels the task with a cause. A nil cause releases the context of an ended task.
func (t *Task) CancelCause(cause error) { t.cancel(cause) }

// SetDone closes Done.
func (t *Task) SetDone() { close(t.done) }

// Errs returns one error for each block, or nil if the block succeeded. Before Done is closed it
// returns a nil slice.
func (t *Task) Errs() []error {
	select {
	case <-t.done:
		return append(make([]error, 0, t.blocks), t.errs...)[:t.blocks]
	default:
		return nil
	}
}

// Completions returns the completions of the batches that have resolved so far, in order of
// resolution.
func (t *Task) Completions() []stream.Completion {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.completions)
}

// AddCompletion records the completion of a resolved batch. err is nil if the batch was copied.
func (t *Task) AddCompletion(direction string, all *stat.Paths, c stream.Completion, submittedAt time.Time, err error) {
	all.Add(c, submittedAt)
	if err != nil && t.ctx.Err() == nil {
		t.p.CountBatchFailure(direction, err)
	}
	t.mu.Lock()
	t.completions = append(t.completions, c)
	t.mu.Unlock()
}

// AddNotDirect records the reason why the task, or a block of it, does not use direct storage.
func (t *Task) AddNotDirect(direction string, all *stat.Paths, why error) {
	now := t.p.Clock.Now()
	t.AddCompletion(direction, all, stream.Completion{Reason: "not by direct storage", GivenUp: why, Started: now, Finished: now}, now, nil)
}

// Wait waits until c is closed and returns the errors of the blocks, joined. If ctx ends first, it
// returns the cause of ctx.
func (t *Task) Wait(ctx context.Context, c <-chan struct{}) error {
	if err := WaitClosed(ctx, c); err != nil {
		return err
	}
	return t.Err()
}

// WaitClosed waits until c is closed and returns nil. If ctx ends first, it returns the cause of
// ctx.
func WaitClosed(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	default:
	}
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Err returns the errors of the blocks so far, joined.
func (t *Task) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.expiredErr != nil {
		return errors.Join(append(slices.Clip(t.errs), t.expiredErr)...)
	}
	return errors.Join(t.errs...)
}

// SetErr sets the error of block i. If the task is canceled, the error also wraps the cause of
// that.
func (t *Task) SetErr(i int32, e BlockError) {
	if t.ctx.Err() != nil && !errors.Is(e.Err, context.Cause(t.ctx)) {
		e.Err = fmt.Errorf("%w: %w", context.Cause(t.ctx), e.Err)
	}
	t.mu.Lock()
	if t.errs == nil {
		t.errs = make([]error, t.blocks)
	}
	t.errs[i] = &e
	t.mu.Unlock()
}

// Expire makes all blocks of a load fail with err, unless Finish was called: streams of the host
// program may have read its pages too early.
func (t *Task) Expire(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.finished {
		t.expiredErr = err
	}
}

// Finish stops the load from expiring. If it has already expired, Finish returns the error and the
// blocks that have no error yet.
func (t *Task) Finish() (succeeded []int32, expiredErr error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	expiredErr = t.expiredErr
	t.expiredErr, t.finished = nil, true
	if expiredErr == nil {
		return nil, nil
	}
	for i := range t.blocks {
		if t.errs == nil || t.errs[i] == nil {
			succeeded = append(succeeded, int32(i))
		}
	}
	return succeeded, expiredErr
}
