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

// Work is what a stream's hardware does for one batch. What implements it embeds the Batch.
type Work interface {
	stream.Driver
	// Issue gives the hardware a part of the batch; whole says that it was the last. ok is false where there is no room:
	// who makes some calls Stream.Settle or Stream.Issue. One goroutine at a time issues.
	Issue() (whole, ok bool)
	// Finish lets go of what the batch holds, once it has landed, and says how it travelled and what became of it: verdict is
	// that, if Finish itself does not fail it (Batch.Verdict). One goroutine at a time finishes.
	Finish(verdict error) (stream.Completion, error)
}

// Batch is a batch that is accepted and unresolved. Work embeds it; its zero value is ready for Stream.Submit.
type Batch struct {
	// Started is when the first part was issued, and zero before. Work.Issue sets it.
	Started time.Time

	stream   *Stream
	work     Work // nil: a call
	call     *call
	ticket   stream.Ticket
	id       uint64
	next     *Batch // in its list; guarded by Stream.mu
	after    []mem.Dependency
	met      int32 // dependencies known to have succeeded; of whoever issues
	flying   atomic.Int32
	canceled atomic.Bool

	// Guarded by Stream.mu.
	lost        bool
	consequence bool  // failed is one, of another failure
	ended       error // why it is issued no further, or nil
	failed      error // how the hardware failed it, or nil
}

// ID is the ticket's number.
func (b *Batch) ID() uint64 { return b.id }

// Canceled reports whether no more of the batch may be issued since somebody wants so.
func (b *Batch) Canceled() bool { return b.canceled.Load() }

// Fly notes that something of the batch is in flight, before anything can tell that it has landed. It is for Work.Issue.
func (b *Batch) Fly() { b.flying.Add(1) }

// Land notes that something has landed that Fly was called for. Stream.Settle or Stream.Issue is called after it.
func (b *Batch) Land() { b.flying.Add(-1) }

// Cancel implements stream.Driver.
func (b *Batch) Cancel() {
	b.canceled.Store(true)
	b.stream.Poke()
}

// End has the batch fail alone.
func (b *Batch) End(err error) {
	b.stream.mu.Lock()
	defer b.stream.mu.Unlock()
	b.ended = err
}

// Fail notes how the hardware failed the batch, which breaks the stream. The first failure stays, but for one that was the
// consequence of another: that breaks only what is not broken.
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

// Lose says that a part of the batch may be in flight, and that nothing tells when it has landed. Fly and Land are about
// the other parts.
func (b *Batch) Lose() {
	b.stream.mu.Lock()
	defer b.stream.mu.Unlock()
	b.lost = true
}

// Verdict returns the error of the batch's ticket. What came after the failure that broke the stream has failed too, even if
// its own copies went well.
func (b *Batch) Verdict() error {
	b.stream.mu.Lock()
	defer b.stream.mu.Unlock()
	return b.verdict()
}

func (b *Batch) verdict() error {
	s := b.stream
	switch {
	case s.cause != nil && s.causeID < b.id && (b.ended == nil || b.failed != nil):
		s.told = true
		err := fmt.Errorf("batch %d: %w: %w", b.id, errdefs.ErrBroken, s.cause)
		if b.failed != nil && !b.consequence {
			err = errors.Join(err, b.failed)
		}
		return err
	case b.failed != nil:
		s.told = s.told || s.causeID == b.id // it tells the cause, which is of this batch
		return b.failed
	}
	return b.ended
}

// Submit accepts the batch that w embeds, to be issued after those dependencies, and issues a part of it if nothing is before
// it. It waits for nothing except a place in the stream. After an error nothing knows the batch.
func (s *Stream) Submit(ctx context.Context, w Work, b *Batch, after []mem.Dependency) (*stream.Ticket, error) {
	for i, d := range after {
		if d == nil {
			return nil, fmt.Errorf("dependency %d is nil: %w", i, errdefs.ErrInvalid)
		}
	}
	b.work, b.after = w, after
	if err := s.enter(ctx, b); err != nil {
		return nil, err
	}
	return &b.ticket, nil
}

// enter takes a place in the stream, appends b to the backlog and issues a part of it if nothing is before it.
func (s *Stream) enter(ctx context.Context, b *Batch) error {
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
			return fmt.Errorf("all %d places are taken: %w", cap(s.slots), context.Cause(ctx))
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
		unmet, more := s.issue(1)
		wait = more || unmet != nil
	}
	s.mu.Unlock()
	if wait {
		s.Poke()
	}
	return nil
}

// Poke has the stream's goroutine issue what it can.
func (s *Stream) Poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// issueLoop is the issuer: it issues what waits for a dependency, and what others leave.
func (s *Stream) issueLoop() {
	var unmet <-chan struct{}
	for {
		select {
		case <-s.wake:
		case <-unmet:
		case <-s.ended.Done():
			return
		}
		s.mu.Lock()
		unmet, _ = s.issue(-1)
		s.mu.Unlock()
	}
}

// Issue issues from the backlog's head until it is empty, must wait, or that many parts are issued (negative: no bound), which
// the stream's goroutine goes on with. Then it settles.
func (s *Stream) Issue(parts int) {
	s.mu.Lock()
	unmet, more := s.issue(parts)
	s.mu.Unlock()
	if more || unmet != nil {
		s.Poke()
	}
}

// issue is Issue with the mutex held, which it releases while it calls others. unmet ends what the head waits for, if that
// is a dependency; more says that the bound was reached.
func (s *Stream) issue(parts int) (unmet <-chan struct{}, more bool) {
	if s.issuing { // one at a time, as the order of the backlog is that of the hardware
		s.look = true
		return nil, false
	}
	s.issuing = true
	for more = true; more && s.backlog.head != nil && parts != 0; parts-- {
		s.look = false
		more, unmet = s.advance(s.backlog.head)
		more = more || s.look
	}
	s.issuing = false
	more = more && s.backlog.head != nil
	s.settle()
	return unmet, more
}

// advance issues a part of b, the backlog's head, and reports whether Issue can go on. It is called with the mutex held, and
// releases it while it calls others.
func (s *Stream) advance(b *Batch) (more bool, unmet <-chan struct{}) {
	if why := s.mustEnd(b); why != nil {
		s.issued(why)
		return true, nil
	}
	s.mu.Unlock()
	unmet, err := b.unmet()
	var whole, ok bool
	if unmet == nil && err == nil {
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
	return ok, unmet
}

func (b *Batch) issue() (whole, ok bool) {
	if b.work == nil {
		return b.call.issue()
	}
	return b.work.Issue()
}

// mustEnd returns why no more of b may be issued, or nil.
func (s *Stream) mustEnd(b *Batch) error {
	switch {
	case s.cause != nil:
		return s.refusal()
	case b.canceled.Load():
		return fmt.Errorf("batch was stopped: %w", errdefs.ErrCanceled)
	case s.closing && b.Started.IsZero():
		return fmt.Errorf("stream closes before the batch has started: %w: %w", errdefs.ErrCanceled, errdefs.ErrClosed)
	}
	return nil
}

// unmet looks at the dependencies in turn. It returns the channel of one that has not resolved, or why one failed.
func (b *Batch) unmet() (<-chan struct{}, error) {
	for ; int(b.met) < len(b.after); b.met++ {
		d := b.after[b.met]
		select {
		case <-d.Done():
			if err := d.Err(); err != nil {
				return nil, fmt.Errorf("dependency %d failed: %w", b.met, err)
			}
		default:
			return d.Done(), nil
		}
	}
	return nil, nil
}

// issued takes the backlog's head off, of which no more will be issued: because it is whole, or for that reason.
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
	s.flight.push(b)
}

// Settle resolves what has landed, from the oldest batch on, and has the stream's goroutine issue what may have room now.
func (s *Stream) Settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	if s.backlog.head != nil {
		s.Poke()
	}
}

// settle is Settle with the mutex held, which it releases while it calls others.
func (s *Stream) settle() {
	if s.settling { // one at a time, as tickets resolve in order; he looks again after each
		return
	}
	s.settling = true
	for s.flight.head != nil && s.flight.head.flying.Load() == 0 {
		b := s.flight.pop()
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
	s.settling = false
	s.endIfOver()
}

// resolve ends b's ticket. Nothing touches its memory any more.
func (s *Stream) resolve(b *Batch, verdict error) {
	c, err := b.work.Finish(verdict)
	b.after = nil // the ticket may be kept for long, and leads here
	<-s.slots
	b.ticket.Resolve(c, err)
}

// list is a list of batches, each in one at most.
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
