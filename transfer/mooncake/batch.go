package mooncake

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/transfer"
)

// Task copies Length bytes between local memory at Local and the segment's memory at Remote. Each
// address is valid in the process that has the memory.
type Task struct {
	Op                    transfer.Op
	Local, Remote, Length uint64
}

// Batch is a list of tasks. When it is done, its local memory is no longer accessed. After an
// incomplete write, the target's memory is undefined and may still be changed by late bytes.
type Batch struct {
	ctx  context.Context //nolint:containedctx // limits the whole batch
	r    *Remote
	stop func() bool // unregisters the callback for the end of ctx
	done chan struct{}

	tasks []taskState
	left  atomic.Int64 // number of unfinished tasks

	mu  sync.Mutex
	err error // error of the first failed task
}

type taskState struct {
	status atomic.Uint32
	parts  atomic.Int64 // number of unfinished parts
	failed atomic.Uint32
}

// part is one request on a connection. It is a task, or a piece of a long task.
type part struct {
	b     *Batch
	index int // index of its task
	Task
	sent bool // local memory is no longer read; guarded by Remote.mu
}

// Done is closed when every task is final.
func (b *Batch) Done() <-chan struct{} { return b.done }

// Len returns the number of tasks.
func (b *Batch) Len() int { return len(b.tasks) }

// Status returns the state of task i.
func (b *Batch) Status(i int) transfer.Status { return transfer.Status(b.tasks[i].status.Load()) }

// Wait waits until every task is final. It returns nil if all have completed, otherwise the first
// error: ErrInvalid for an address that the target refused, ErrCanceled if the batch's context has
// ended, ErrBroken for a failed connection, ErrClosed for a closed Remote. If ctx ends first, Wait
// returns ErrCanceled with the cause of ctx, and the batch continues.
func (b *Batch) Wait(ctx context.Context) error {
	select {
	case <-b.done:
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.err
	default:
	}
	select {
	case <-b.done:
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.err
	case <-ctx.Done():
		return fmt.Errorf("wait for batch: %w: %w", errdefs.ErrCanceled, context.Cause(ctx))
	}
}

// finish sets the final status of a part. The first failed part determines the status of its task.
func (p *part) finish(s transfer.Status, err error) {
	b, t := p.b, &p.b.tasks[p.index]
	if s != transfer.StatusCompleted {
		t.failed.CompareAndSwap(0, uint32(s))
		b.mu.Lock()
		if b.err == nil {
			b.err = fmt.Errorf("%s %d bytes at %#x of segment %s (task %d): %w", p.Op, p.Length, p.Remote, b.r.name, p.index, err)
		}
		b.mu.Unlock()
	}
	if t.parts.Add(-1) > 0 {
		return
	}
	if f := t.failed.Load(); f != 0 {
		s = transfer.Status(f)
	}
	t.status.Store(uint32(s))
	if b.left.Add(-1) == 0 {
		b.stop()
		close(b.done)
	}
}

// failureOf returns the final status and the error of a part that failed with err. If the batch's
// context has ended, they report that instead.
func (p *part) failureOf(err error) (transfer.Status, error) {
	cause := context.Cause(p.b.ctx)
	switch {
	case cause == nil:
		return transfer.StatusFailed, err
	case errors.Is(cause, context.DeadlineExceeded):
		return transfer.StatusTimeout, fmt.Errorf("%w: %w", errdefs.ErrCanceled, cause)
	}
	return transfer.StatusCanceled, fmt.Errorf("%w: %w", errdefs.ErrCanceled, cause)
}
