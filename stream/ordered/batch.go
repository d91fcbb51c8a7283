package ordered

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// Work submits one batch to the hardware. An implementation embeds Batch.
type Work interface {
	stream.Driver
	// Issue submits a part of the batch to the hardware. whole is set if it was the last part. ok
	// is false if the hardware has no space; the goroutine that frees space must then call
	// Stream.ResolveCompleted or Stream.Issue. Only one goroutine at a time issues.
	Issue() (whole, ok bool)
	// Finish releases the resources of a completed batch. It returns the completion and the error
	// of the ticket: verdict (see Batch.Verdict), unless Finish itself fails the batch. Only one
	// goroutine at a time calls Finish.
	Finish(verdict error) (stream.Completion, error)
}

// Batch is an accepted, unresolved batch. Implementations of Work embed it. The zero value is ready
// for Stream.Submit.
type Batch struct {
	// Started is the time when the first part was issued, or zero. Work.Issue sets it.
	Started time.Time

	stream       *Stream
	work         Work // nil for a call
	call         *call
	ticket       stream.Ticket
	id           uint64
	next         *Batch // next batch of its list; guarded by Stream.mu
	after        []mem.Dependency
	depsResolved int32 // number of dependencies known to have succeeded; used only by the issuing goroutine
	inFlight     atomic.Int32
	canceled     atomic.Bool

	// Guarded by Stream.mu.
	lost        bool
	consequence bool  // failed is a consequence of another failure
	ended       error // why issuing has stopped, or nil
	failed      error // failure of the hardware, or nil
}

// ID returns the ticket's number.
func (b *Batch) ID() uint64 { return b.id }

// Canceled reports whether the batch was canceled. If so, no further part of it may be issued.
func (b *Batch) Canceled() bool { return b.canceled.Load() }

// AddInFlight counts a transfer of the batch as in flight. Work.Issue calls it before the
// completion of the transfer can be observed.
func (b *Batch) AddInFlight() { b.inFlight.Add(1) }

// RemoveInFlight counts a transfer as completed that AddInFlight has counted. Call Stream.ResolveCompleted or
// Stream.Issue after it.
func (b *Batch) RemoveInFlight() { b.inFlight.Add(-1) }

// Cancel implements stream.Driver.
func (b *Batch) Cancel() {
	b.canceled.Store(true)
	b.stream.Wake()
}

// End makes the batch fail without breaking the stream.
func (b *Batch) End(err error) {
	b.stream.mu.Lock()
	defer b.stream.mu.Unlock()
	b.ended = err
}

// Fail records a hardware failure of the batch and breaks the stream. The first failure is kept,
// but an original failure replaces a consequence of another failure. A consequence breaks the
// stream only if the stream is not broken yet.
func (b *Batch) Fail(err error, consequence bool) {
	s := b.stream
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.failed == nil || b.consequence && !consequence {
		b.failed, b.consequence = err, consequence
	}
	if !consequence || s.cause == nil {
		s.breakBy(b.id, b.failed)
	}
}

// Lose records that a part of the batch may be in flight whose completion cannot be observed.
// AddInFlight and RemoveInFlight count the other parts.
func (b *Batch) Lose() {
	b.stream.mu.Lock()
	defer b.stream.mu.Unlock()
	b.lost = true
}

// Verdict returns the error of the batch's ticket. All batches after the failure that broke the
// stream fail, even if they were copied successfully.
func (b *Batch) Verdict() error {
	b.stream.mu.Lock()
	defer b.stream.mu.Unlock()
	return b.verdict()
}

func (b *Batch) verdict() error {
	s := b.stream
	switch {
	case s.cause != nil && s.causeID < b.id && (b.ended == nil || b.failed != nil):
		s.causeReported = true
		err := fmt.Errorf("batch %d: %w: %w", b.id, errdefs.ErrBroken, s.cause)
		if b.failed != nil && !b.consequence {
			err = errors.Join(err, b.failed)
		}
		return err
	case b.failed != nil:
		// The ticket's error reports the cause, because the cause belongs to this batch.
		s.causeReported = s.causeReported || s.causeID == b.id
		return b.failed
	}
	return b.ended
}

// Submit accepts the batch that w embeds, to be issued after its dependencies. If the backlog is
// empty, Submit issues a part of it. It blocks only while the stream is full. After an error the
// batch is not accepted.
func (s *Stream) Submit(ctx context.Context, w Work, b *Batch, after []mem.Dependency) (*stream.Ticket, error) {
	for i, d := range after {
		if d == nil {
			return nil, fmt.Errorf("dependency %d is nil: %w", i, errdefs.ErrInvalid)
		}
	}
	b.work, b.after = w, after
	if err := s.enqueue(ctx, b); err != nil {
		return nil, err
	}
	return &b.ticket, nil
}

// enqueue takes a slot and appends b to the backlog.
func (s *Stream) enqueue(ctx context.Context, b *Batch) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case s.slots <- struct{}{}:
	default:
		select {
		case s.slots <- struct{}{}:
		case <-s.down:
			return s.Refusal()
		case <-ctx.Done():
			return fmt.Errorf("all %d slots are in use: %w: %w", cap(s.slots), errdefs.ErrBusy, context.Cause(ctx))
		}
	}
	s.mu.Lock()
	if s.closing || s.cause != nil {
		defer s.mu.Unlock()
		<-s.slots
		return s.refusal()
	}
	b.stream = s
	if b.work != nil {
		s.lastID++
	}
	if b.id = s.lastID; b.work != nil {
		b.ticket.Drive(b.id, b.work)
	}
	s.backlog.push(b)
	wait := true
	if s.backlog.head == b {
		pending, more := s.issue(1)
		wait = more || pending != nil
	}
	s.mu.Unlock()
	if wait {
		s.Wake()
	}
	return nil
}

// Wake wakes the stream's goroutine, which issues as much as it can.
func (s *Stream) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// issueLoop issues batches that waited for a dependency, and parts that other goroutines left in
// the backlog.
func (s *Stream) issueLoop() {
	var pending <-chan struct{}
	for {
		select {
		case <-s.wake:
		case <-pending:
		case <-s.ended.Done():
			return
		}
		s.mu.Lock()
		pending, _ = s.issue(-1)
		s.mu.Unlock()
	}
}

// Issue issues parts of the backlog in order until the limit is reached, the backlog is empty or
// its head must wait. A negative limit means no limit. If the limit is reached or a dependency is
// unresolved, Issue wakes the stream's goroutine. It also resolves completed batches.
func (s *Stream) Issue(parts int) {
	s.mu.Lock()
	pending, more := s.issue(parts)
	s.mu.Unlock()
	if more || pending != nil {
		s.Wake()
	}
}

// issue implements Issue. The caller holds mu; issue releases it around calls of Work and tickets.
// pending is the channel of the dependency that the head waits for, or nil. more is set if the
// limit was reached.
func (s *Stream) issue(parts int) (pending <-chan struct{}, more bool) {
	// One goroutine at a time issues, so that the hardware order is the backlog order.
	if s.issuing {
		s.recheck = true
		return nil, false
	}
	s.issuing = true
	for more = true; more && s.backlog.head != nil && parts != 0; parts-- {
		s.recheck = false
		more, pending = s.advance(s.backlog.head)
		more = more || s.recheck
	}
	s.issuing = false
	more = more && s.backlog.head != nil
	s.resolveCompleted()
	return pending, more
}

// advance issues a part of b, the head of the backlog. more is set if issuing can continue. The
// caller holds mu; advance releases it while it calls b.
func (s *Stream) advance(b *Batch) (more bool, pending <-chan struct{}) {
	if why := s.mustEnd(b); why != nil {
		s.issued(why)
		return true, nil
	}
	s.mu.Unlock()
	pending, err := b.pendingDep()
	var whole, ok bool
	if pending == nil && err == nil {
		whole, ok = b.issue()
	}
	s.mu.Lock()
	if err != nil {
		s.issued(err)
		return true, nil
	}
	if whole {
		s.issued(nil)
	}
	return ok, pending
}

func (b *Batch) issue() (whole, ok bool) {
	if b.work == nil {
		return b.call.issue()
	}
	return b.work.Issue()
}

// mustEnd returns the reason why no more of b may be issued, or nil.
func (s *Stream) mustEnd(b *Batch) error {
	switch {
	case s.cause != nil:
		return s.refusal()
	case b.canceled.Load():
		return fmt.Errorf("batch was stopped: %w", errdefs.ErrCanceled)
	case s.closing && b.Started.IsZero():
		return fmt.Errorf("the stream closed before the start of the batch: %w: %w", errdefs.ErrCanceled, errdefs.ErrClosed)
	}
	return nil
}

// pendingDep checks the dependencies in order. It returns the channel of the first unresolved one,
// or the error of a failed one.
func (b *Batch) pendingDep() (<-chan struct{}, error) {
	for ; int(b.depsResolved) < len(b.after); b.depsResolved++ {
		d := b.after[b.depsResolved]
		select {
		case <-d.Done():
			if err := d.Err(); err != nil {
				return nil, fmt.Errorf("dependency %d failed: %w", b.depsResolved, err)
			}
		default:
			return d.Done(), nil
		}
	}
	return nil, nil
}

// issued removes the head of the backlog. It is completely issued, or issuing has stopped for the
// reason why.
func (s *Stream) issued(why error) {
	b := s.backlog.pop()
	if b.work == nil {
		b.call.end(why)
		<-s.slots
		return
	}
	if why != nil {
		b.ended = fmt.Errorf("batch %d: %w", b.id, why)
	}
	s.inFlight.push(b)
}

// ResolveCompleted resolves completed batches in order, oldest first. It wakes the stream's
// goroutine, because the hardware may have space for the backlog.
func (s *Stream) ResolveCompleted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resolveCompleted()
	if s.backlog.head != nil {
		s.Wake()
	}
}

// resolveCompleted resolves completed batches. The caller holds mu; resolveCompleted releases it
// around calls.
func (s *Stream) resolveCompleted() {
	// One goroutine at a time resolves, so that tickets resolve in order. It checks again after
	// each ticket.
	if s.resolving {
		return
	}
	s.resolving = true
	for s.inFlight.head != nil && s.inFlight.head.inFlight.Load() == 0 {
		b := s.inFlight.pop()
		if s.lost = s.lost || b.lost; s.lost {
			s.quarantine.push(b)
			s.quarantined++
			continue
		}
		verdict := b.verdict()
		s.mu.Unlock()
		s.resolve(b, verdict)
		s.mu.Lock()
	}
	s.resolving = false
	s.endIfOver()
}

// resolve finishes b and resolves its ticket. No hardware accesses its memory any longer.
func (s *Stream) resolve(b *Batch, verdict error) {
	c, err := b.work.Finish(verdict)
	// A ticket may be kept for long and references b.
	b.after = nil
	<-s.slots
	b.ticket.Resolve(c, err)
}

// list is a linked list of batches. A batch is in at most one list.
type list struct{ head, tail *Batch }

func (l *list) push(b *Batch) {
	if l.tail == nil {
		l.head = b
	} else {
		l.tail.next = b
	}
	l.tail = b
}

func (l *list) pop() *Batch {
	b := l.head
	if l.head = b.next; l.head == nil {
		l.tail = nil
	}
	b.next = nil
	return b
}
