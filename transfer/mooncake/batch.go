package mooncake

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kvlane/kvlane/errdefs"
)

// Task moves Length bytes between local memory at Local and the segment at Remote, both addresses in the process that has the memory.
type Task struct {
	Op                    Op
	Local, Remote, Length uint64
}

// Status is how far a task is.
type Status uint32

// The states of a task. From Completed on they are final.
const (
	Waiting   Status = iota // nothing of it is under way
	Pending                 // some of it is under way
	Completed               // its bytes are where they belong
	Invalid                 // the target refused its address; nothing was moved
	Canceled                // the batch's context was canceled before it ended: its bytes are undefined
	TimedOut                // the batch's deadline passed: its bytes are undefined
	Failed                  // its bytes are undefined
)

var statusNames = [...]string{"waiting", "pending", "completed", "invalid", "canceled", "timeout", "failed"}

// String returns the field's name for the state.
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("status(%d)", uint32(s))
}

// Batch is tasks that were submitted together. Once it is done nothing of it touches local memory any more. What the target's memory holds
// after a write that did not complete is undefined, and may change for as long as bytes of it are on their way.
type Batch struct {
	ctx  context.Context //nolint:containedctx // bounds the whole batch
	r    *Remote
	stop func() bool // ends the watch of ctx
	done chan struct{}

	tasks []taskState
	left  atomic.Int64 // tasks that are not final

	mu  sync.Mutex
	err error // of the first task that failed
}

type taskState struct {
	status atomic.Uint32
	parts  atomic.Int64 // that are not final
	failed atomic.Uint32
}

// part is what goes over one connection in one request: a task, or a piece of a large one.
type part struct {
	b     *Batch
	index int // of the task
	Task
	sent bool // local memory is read no more. Guarded by the remote's lock.
}

// Done is closed once every task is final.
func (b *Batch) Done() <-chan struct{} { return b.done }

// Len returns the number of tasks.
func (b *Batch) Len() int { return len(b.tasks) }

// Status returns how far task i is.
func (b *Batch) Status(i int) Status { return Status(b.tasks[i].status.Load()) }

// Wait waits until every task is final and returns nil if all completed, else the first one's error: ErrInvalid for an address that the
// target refused, ErrCanceled for a context that ended, ErrBroken for a connection that did, ErrClosed for a Remote. If ctx ends before, it
// returns ErrCanceled with its cause, and the batch goes on.
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

// finish makes a part final. A task is what the first of its parts that failed is.
func (p *part) finish(s Status, err error) {
	b, t := p.b, &p.b.tasks[p.index]
	if s != Completed {
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
		s = Status(f)
	}
	t.status.Store(uint32(s))
	if b.left.Add(-1) == 0 {
		b.stop()
		close(b.done)
	}
}

// ended returns what becomes of a part that cannot go on because of err, and says whether that is its batch's context's doing.
func (p *part) failureOf(err error) (Status, error) {
	cause := context.Cause(p.b.ctx)
	switch {
	case cause == nil:
		return Failed, err
	case errors.Is(cause, context.DeadlineExceeded):
		return TimedOut, fmt.Errorf("%w: %w", errdefs.ErrCanceled, cause)
	}
	return Canceled, fmt.Errorf("%w: %w", errdefs.ErrCanceled, cause)
}
