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
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store/pages"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/store/stat"
	"github.com/kvlane/kvlane/stream"
)

// Handle has the methods of all tasks that their users call. All are safe for concurrent use.
type Handle struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
	blocks int

	mu   sync.Mutex
	errs []error // by block, once one has failed
}

// Task holds the context, the results and the completions of one load, dump or prefetch. All
// methods are safe for concurrent use.
type Task struct {
	Handle
	p     *pipeline.Pipeline
	sched *Scheduler
	ctx   context.Context

	endSpan func(error) // nil without a tracer

	// Guarded by Handle.mu.
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

// New returns a task of n blocks. The caller has called Scheduler.Begin for it. operation is its
// name in traces, and ctx has the parent of its span.
func New(ctx context.Context, p *pipeline.Pipeline, s *Scheduler, kind Kind, operation string, n int) *Task {
	t := &Task{Handle: Handle{done: make(chan struct{}), blocks: n}, p: p, sched: s}
	life, end := p.StartTaskSpan(ctx, s.ctx[kind], pipeline.Span{Operation: operation, Blocks: n})
	t.endSpan = end
	t.ctx, t.cancel = context.WithCancelCause(life)
	t.completions = t.first[:0]
	return t
}

// Context returns the context of the task. It ends when the task is canceled or has ended.
func (t *Task) Context() context.Context { return t.ctx }

// Blocks returns the number of blocks.
func (t *Task) Blocks() int { return t.blocks }

// CancelCause cancels the task with a cause.
func (t *Task) CancelCause(cause error) { t.cancel(cause) }

// SetDone closes Done and releases the context.
func (t *Task) SetDone() {
	if t.endSpan != nil {
		t.endSpan(t.Err())
	}
	close(t.done)
	t.cancel(nil)
}

// Done returns a channel that is closed when the task has ended: every block has a result, and the
// task's pages and slots are no longer accessed.
func (h *Handle) Done() <-chan struct{} { return h.done }

// Cancel cancels the task. It does not wait: the task ends when the hardware has stopped, and
// unfinished blocks fail with ErrCanceled.
func (h *Handle) Cancel() { h.cancel(errdefs.ErrCanceled) }

// Errs returns one error for each block, a *BlockError, or nil if the block succeeded. Before Done
// is closed it returns a nil slice.
func (h *Handle) Errs() []error {
	select {
	case <-h.done:
		return append(make([]error, 0, h.blocks), h.errs...)[:h.blocks]
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

// Pending reports whether a dependency has not resolved or has failed.
func Pending(after []mem.Dependency) bool {
	for _, d := range after {
		select {
		case <-d.Done():
			if d.Err() != nil {
				return true
			}
		default:
			return true
		}
	}
	return false
}

// WaitAll waits for dependencies. The task must hold no slots. The wait is unlimited until the
// scheduler closes, and lasts at most LeaseMax after that.
func (t *Task) WaitAll(after []mem.Dependency) error {
	closing := t.sched.Closing()
	var expired <-chan time.Time
	for k := 0; k < len(after); {
		select {
		case <-after[k].Done():
			if err := after[k].Err(); err != nil {
				return DependencyError(after, k, err)
			}
			k++
		case <-t.ctx.Done():
			return DependencyError(after, k, context.Cause(t.ctx))
		case <-closing:
			closing = nil
			timer := t.p.Clock.NewTimer(t.p.LeaseMax)
			defer timer.Stop()
			expired = timer.Chan()
		case <-expired:
			return DependencyError(after, k, fmt.Errorf("store has been closing for %v: %w", t.p.LeaseMax, errdefs.ErrClosed))
		}
	}
	return nil
}

// DependencyError wraps err with the number and the type of dependency k.
func DependencyError(after []mem.Dependency, k int, err error) error {
	return fmt.Errorf("wait for dependency %d of %d (%T): %w", k+1, len(after), after[k], err)
}

// Refs is a task's copy of its refs. It reuses its memory. The zero value is ready for Set.
type Refs struct {
	Refs     []pages.Ref
	Keys     []block.Key // by ref
	Groups   []uint8     // by ref: page group
	checker  pages.Checker
	selected []block.Key
}

// Set copies and validates refs. If unique is set, each page may be named only once.
func (r *Refs) Set(m *pages.Map, p *pages.Pages, refs []pages.Ref, unique bool) error {
	r.Refs = append(r.Refs[:0], refs...)
	r.Keys, r.Groups = r.Keys[:0], r.Groups[:0]
	for i := range refs {
		r.Keys = append(r.Keys, refs[i].Key)
		// Check will refuse keys of no group.
		r.Groups = append(r.Groups, uint8(m.Formats.Group(refs[i].Key)))
	}
	r.checker.Reset(m, p, unique)
	return r.checker.Check(refs, r.Groups)
}

// KeysOf returns the keys of refs. The result is valid until the next call.
func (r *Refs) KeysOf(items []int32) []block.Key {
	first := int(items[0])
	for k, i := range items {
		if int(i) != first+k { // rare: the refs are not contiguous
			r.selected = r.selected[:0]
			for _, i := range items {
				r.selected = append(r.selected, r.Keys[i])
			}
			return r.selected
		}
	}
	return r.Keys[first:][:len(items)]
}
