package sim

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
)

// Event is a point in a queue. It implements device.Event.
type Event struct {
	queue  *Queue
	done   chan struct{}
	closed atomic.Bool
	// err and at are written before done is closed.
	err error
	at  time.Time // time at which the work completed, in model time
}

var _ device.Event = (*Event)(nil)

func newEvent(q *Queue) *Event {
	leak.Add(leak.Events, 1)
	return &Event{queue: q, done: make(chan struct{})}
}

func (e *Event) resolve(err error, at time.Time) {
	e.err, e.at = err, at
	close(e.done)
}

// Done reports whether the work has completed. Failed work counts as completed: it no longer
// accesses memory.
func (e *Event) Done() (bool, error) {
	if err := e.usable("ask"); err != nil {
		return false, err
	}
	select {
	case <-e.done:
		return true, e.verdict()
	default:
		return false, nil
	}
}

// Wait waits until the work has completed and returns its error. If ctx ends first, Wait returns
// the cause of ctx.
func (e *Event) Wait(ctx context.Context) error {
	if err := e.usable("wait for"); err != nil {
		return err
	}
	select {
	case <-e.done:
		return e.verdict()
	default:
	}
	select {
	case <-e.done:
		return e.verdict()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// verdict returns the error of a completed event, and marks the queue's failure as returned.
func (e *Event) verdict() error {
	if e.err != nil {
		e.queue.markReported()
	}
	return e.err
}

// Close releases the event. A queue that waits for it continues to wait.
func (e *Event) Close() {
	if !e.closed.CompareAndSwap(false, true) {
		e.queue.dev.misused(fmt.Errorf("an event of %s was closed twice: %w", e.queue, errdefs.ErrClosed))
		return
	}
	leak.Add(leak.Events, -1)
}

func (e *Event) usable(verb string) error {
	if !e.closed.Load() {
		return nil
	}
	err := fmt.Errorf("%s event of %s after its Close: %w", verb, e.queue, errdefs.ErrClosed)
	e.queue.dev.misused(err)
	return err
}
