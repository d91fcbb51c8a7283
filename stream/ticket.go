package stream

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"
)

// Completion says how a batch travelled.
type Completion struct {
	Path   Path
	Reason string // why this path: one of a few constant texts, not formatted per batch
	Bytes  int64
	Pieces int // copies that the batch stood for, before merging
	// Summed says that the stream filled mem.Paged.Sums of a batch that asked for it and succeeded. Where it is false the
	// path takes no sums, and who wants them computes them.
	Summed bool
	// GivenUp is why the path that was chosen first cannot be had, memory or queues that the device refused, or a NIC that
	// broke: the batch went another way, and later ones will. A path for which there was no memory is tried again after a while.
	// It is told once a try. Nil mostly.
	GivenUp error
	// Predicted is what the planner expected the batch to take from Started, or from the end of the batch before it if that
	// was later; zero where nothing predicted.
	Predicted time.Duration
	// Started is when the first byte was handed to the hardware, Finished when the last was seen to have landed.
	Started, Finished time.Time
}

// Driver is what a ticket asks of the stream that made it. Its methods may be called from any goroutine, several times, also
// after the ticket has resolved, and must not block.
type Driver interface {
	// Cancel is Ticket.Cancel.
	Cancel()
	// Poll resolves tickets whose copies have landed, on the caller's goroutine, and reports whether calling it again
	// soon may resolve this one; otherwise somebody else is at it, or it will take long.
	Poll() bool
	// Watch says that somebody has begun to wait without polling. A stream that was not told, and whose tickets were not
	// polled, may leave a finished ticket unresolved until it has other things to do.
	Watch()
}

// Ticket stands for an accepted batch. Safe for concurrent use. It implements mem.Dependency.
type Ticket struct {
	id       uint64
	done     chan struct{}
	driver   Driver // nil where the stream needs none
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

// Drive makes an unresolved ticket of t, which is zero: of a stream whose completion those who wait may drive. It lets the stream have the
// ticket where it has the batch.
func (t *Ticket) Drive(id uint64, d Driver) {
	t.id, t.done, t.driver = id, make(chan struct{}), d
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
func (t *Ticket) Done() <-chan struct{} {
	t.watch()
	return t.done
}

// isDone reports whether the ticket has resolved; comp and err may be read then.
func (t *Ticket) isDone() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

// Err returns why the batch failed, or nil. Before Done is closed it returns nil too.
func (t *Ticket) Err() error {
	if !t.isDone() {
		return nil
	}
	return t.err
}

// Completion returns how the batch travelled; it is valid once Done is closed.
func (t *Ticket) Completion() Completion {
	if !t.isDone() {
		return Completion{}
	}
	return t.comp
}

// How long Wait polls before it sleeps. A copy of a few blocks takes 5 to 20 us, one of 8 MiB 170, and being woken up another 2 to 7; who
// waits longer than that loses little by sleeping. Other goroutines get their turn every 10 to 25 us, when most small copies
// are over: to yield wakes an idle processor up, which takes a microsecond. The number of polls is bounded too, for clocks
// that stand still.
const (
	spin       = 250 * time.Microsecond
	yieldEvery = 256 // polls, of 40 to 100 ns each
	maxPolls   = 32 * yieldEvery
)

// Wait waits until the ticket resolves and returns its error, or until ctx ends and returns the context's cause. Giving
// up does not end the batch: its memory must not be reused until Done is closed.
//
// For at most 250 us Wait polls the device itself, letting other goroutines run every 10 to 25, as being woken up takes about
// as long as a small copy. It sleeps at once where the stream expects the copy to take longer.
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

// Poll resolves the ticket on the caller's goroutine if its copies have landed and the stream lets those who wait see to
// that, and reports whether it has resolved. It does not block.
func (t *Ticket) Poll() bool {
	if t.driver != nil && !t.resolved.Load() {
		t.driver.Poll()
	}
	return t.isDone()
}

// Spin is the first part of Wait, in which that polls, and reports whether the ticket has resolved.
func (t *Ticket) Spin(ctx context.Context) bool {
	if t.isDone() || t.driver == nil {
		return t.isDone()
	}
	if ctx.Err() != nil {
		return t.Poll()
	}
	begun := time.Now()
	for polls := 1; polls <= maxPolls; polls++ {
		again := t.driver.Poll()
		switch {
		case t.resolved.Load() && t.isDone():
			return true
		case !again:
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

// watch tells the stream that somebody waits.
func (t *Ticket) watch() {
	if t.driver != nil && !t.resolved.Load() {
		t.driver.Watch()
	}
}

// Cancel asks the stream to issue no more of the batch. The ticket then resolves with ErrCanceled once nothing can touch
// its memory, or as it would have if all was issued already. Cancelling a resolved ticket does nothing.
func (t *Ticket) Cancel() {
	switch {
	case t.driver != nil:
		t.driver.Cancel()
	case t.cancel != nil:
		t.cancel()
	}
}
