package stream

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"
)

// Completion describes how a batch was copied.
type Completion struct {
	Path   Path
	Reason string // why this path was used: one of a few constants
	Bytes  int64
	Pieces int // copies in the batch, before merging
	// Summed is set if the batch requested checksums, succeeded, and the stream filled
	// mem.Paged.Sums. Otherwise the caller must compute them.
	Summed bool
	// GivenUp is the reason why the first chosen path is not available: missing memory or queues,
	// or a broken NIC. The batch used another path, and later ones will too. A path without memory
	// is retried after a while. Each attempt is reported once. Usually nil.
	GivenUp error
	// Predicted is the predicted duration of the batch from Started, or from the end of the
	// previous batch if that was later. Zero without a prediction.
	Predicted time.Duration
	// Started is the time at which the first byte was submitted to the hardware. Finished is the
	// time at which the completion was observed.
	Started, Finished time.Time
}

// Driver connects a ticket to its stream. Its methods may be called from any goroutine, repeatedly,
// also after the ticket has resolved. They must not block.
type Driver interface {
	// Cancel implements Ticket.Cancel.
	Cancel()
	// Poll resolves tickets whose copies have completed, on the caller's goroutine. It reports
	// whether polling again soon may resolve this ticket. It returns false if another goroutine
	// polls or if the batch takes long.
	Poll() bool
	// Watch notifies the stream that a goroutine waits without polling. Without Watch and Poll, a
	// stream may leave a completed ticket unresolved until it has other work.
	Watch()
}

// Ticket is an accepted batch. It is safe for concurrent use. It implements mem.Dependency.
type Ticket struct {
	id       uint64
	done     chan struct{}
	driver   Driver // nil if the stream has none
	cancel   func()
	resolved atomic.Bool
	// comp and err are written once, before done is closed.
	comp Completion
	err  error
}

// NewTicket returns an unresolved ticket, for implementations of Stream. Ticket.Cancel calls
// cancel, possibly several times and from any goroutine. cancel must not block. If it is nil, the
// stream cannot cancel.
func NewTicket(id uint64, cancel func()) *Ticket {
	return &Ticket{id: id, done: make(chan struct{}), cancel: cancel}
}

// Drive turns a zero ticket into an unresolved ticket of a stream with a Driver. The stream can
// embed the ticket in its batch.
func (t *Ticket) Drive(id uint64, d Driver) {
	t.id, t.done, t.driver = id, make(chan struct{}), d
}

// Resolve resolves the ticket. Only the stream that created it may call it. A second call is a bug
// and panics.
func (t *Ticket) Resolve(c Completion, err error) {
	if !t.resolved.CompareAndSwap(false, true) {
		panic("stream: ticket resolved twice")
	}
	t.comp, t.err = c, err
	close(t.done)
}

// ID returns the ticket's number, ascending within its stream from 1.
func (t *Ticket) ID() uint64 { return t.id }

// Done returns a channel that is closed when the ticket has resolved. After that the batch's memory
// is no longer accessed.
func (t *Ticket) Done() <-chan struct{} {
	t.watch()
	return t.done
}

// isDone reports whether the ticket has resolved. If so, comp and err may be read.
func (t *Ticket) isDone() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

// Err returns the error of the batch, or nil. It returns nil before Done is closed.
func (t *Ticket) Err() error {
	if !t.isDone() {
		return nil
	}
	return t.err
}

// Completion describes how the batch was copied. It is valid after Done is closed.
func (t *Ticket) Completion() Completion {
	if !t.isDone() {
		return Completion{}
	}
	return t.comp
}

// The limits of polling in Wait. A copy of a few blocks takes 5 to 20 us, one of 8 MiB 170 us, and
// a wake-up 2 to 7 us more. After spin, sleeping costs little. A yield may wake an idle processor,
// which takes a microsecond, so Wait yields every 10 to 25 us. maxPolls ends polling if the clock
// stands still.
const (
	spin       = 250 * time.Microsecond
	yieldEvery = 256 // polls, of 40 to 100 ns each
	maxPolls   = 32 * yieldEvery
)

// Wait waits until the ticket resolves and returns its error, or until ctx ends and returns the
// cause of ctx. The batch continues after ctx ends: do not reuse its memory before Done is closed.
//
// Wait polls the device for at most 250 us, and yields to other goroutines every 10 to 25 us,
// because a wake-up takes about as long as a small copy. It sleeps at once if the stream expects a
// longer copy.
func (t *Ticket) Wait(ctx context.Context) error {
	if t.Spin(ctx) {
		return t.err
	}
	t.watch()
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Poll resolves the ticket on the caller's goroutine if its copies have completed, and reports
// whether it has resolved. It does not block.
func (t *Ticket) Poll() bool {
	if t.driver != nil && !t.resolved.Load() {
		t.driver.Poll()
	}
	return t.isDone()
}

// Spin implements the polling of Wait. It reports whether the ticket has resolved.
func (t *Ticket) Spin(ctx context.Context) bool {
	if t.isDone() || t.driver == nil {
		return t.isDone()
	}
	if ctx.Err() != nil {
		return t.Poll()
	}
	begun := time.Now()
	for polls := 1; polls <= maxPolls; polls++ {
		more := t.driver.Poll()
		switch {
		case t.resolved.Load() && t.isDone():
			return true
		case !more:
			return false
		case polls%yieldEvery != 0:
			continue
		case ctx.Err() != nil || time.Since(begun) > spin:
			return false
		}
		runtime.Gosched()
	}
	return false
}

// watch notifies the stream of a wait.
func (t *Ticket) watch() {
	if t.driver != nil && !t.resolved.Load() {
		t.driver.Watch()
	}
}

// Cancel asks the stream to issue no more of the batch. The ticket resolves with ErrCanceled once
// its memory is no longer accessed, or with its result if everything was already issued. Cancel of
// a resolved ticket has no effect.
func (t *Ticket) Cancel() {
	switch {
	case t.driver != nil:
		t.driver.Cancel()
	case t.cancel != nil:
		t.cancel()
	}
}
