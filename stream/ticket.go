package stream

import (
	"context"
	"sync/atomic"
	"time"
)

// Completion says how a batch travelled.
type Completion struct {
	Path   Path
	Reason string // why this path: one of a few constant texts, not formatted per batch
	Bytes  int64
	Pieces int // copies that the batch stood for, before merging
	// Started is when the first byte was handed to the hardware, Finished when the last had landed.
	Started, Finished time.Time
}

// Ticket stands for an accepted batch. Safe for concurrent use. It implements mem.Dependency.
type Ticket struct {
	id       uint64
	done     chan struct{}
	cancel   func()
	resolved atomic.Bool
	// comp and err are written once, before done is closed.
	comp Completion
	err  error
}

// NewTicket returns an unresolved ticket, for implementations of Stream. cancel is called by Cancel, maybe several times
// and from any goroutine, and must not block; nil means that the stream cannot cancel.
func NewTicket(id uint64, cancel func()) *Ticket {
	return &Ticket{id: id, done: make(chan struct{}), cancel: cancel}
}

// Resolve ends the ticket; it is for the Stream that made it. It panics when called twice: that is a bug.
func (t *Ticket) Resolve(c Completion, err error) {
	if !t.resolved.CompareAndSwap(false, true) {
		panic("stream: ticket resolved twice")
	}
	t.comp, t.err = c, err
	close(t.done)
}

// ID is the ticket's number, ascending within its stream, from 1.
func (t *Ticket) ID() uint64 { return t.id }

// Done is closed when the ticket has resolved: nothing touches the batch's memory any more.
func (t *Ticket) Done() <-chan struct{} { return t.done }

// Err returns why the batch failed, or nil. Before Done is closed it returns nil too.
func (t *Ticket) Err() error {
	select {
	case <-t.done:
		return t.err
	default:
		return nil
	}
}

// Completion returns how the batch travelled; it is valid once Done is closed.
func (t *Ticket) Completion() Completion {
	select {
	case <-t.done:
		return t.comp
	default:
		return Completion{}
	}
}

// Wait waits until the ticket resolves and returns its error, or until ctx ends and returns the context's cause. Giving
// up does not end the batch: its memory must not be reused until Done is closed.
func (t *Ticket) Wait(ctx context.Context) error {
	select {
	case <-t.done:
		return t.err
	default:
	}
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Cancel asks the stream to issue no more of the batch. The ticket then resolves with ErrCanceled once nothing can touch
// its memory, or as it would have if all was issued already. Cancelling a resolved ticket does nothing.
func (t *Ticket) Cancel() {
	if t.cancel != nil {
		t.cancel()
	}
}
