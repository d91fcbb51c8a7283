package ordered

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
)

// Options configure a stream. All fields except Stop are required.
type Options struct {
	Name  string // kind of stream for errors, such as "copy stream"
	Depth int    // maximum number of unresolved batches and calls
	// Stop returns nil when the hardware has stopped permanently. Close calls it when only
	// quarantined batches are left, and again after an error. If Stop is nil, an idle stream counts
	// as stopped.
	Stop func(ctx context.Context) error
	// Free releases the stream's resources after Stop. After an error it is called again for the
	// remaining resources.
	Free func() error
}

// Stream manages the batches of an ordered stream. It is safe for concurrent use.
type Stream struct {
	opts Options

	// slots has one element for each unresolved batch or call.
	slots chan struct{}
	// down is closed when the stream is broken or closing and accepts no further batches.
	down chan struct{}
	// wake makes the issuing goroutine check the whole backlog, so one token is enough.
	wake chan struct{}
	// ended ends the stream's goroutines when the stream is closing and has nothing left to issue
	// or complete. stopped is closed when they have returned.
	ended   context.Context
	end     context.CancelFunc
	running sync.WaitGroup
	stopped chan struct{}
	closer  chan struct{} // holds a token during Close

	mu        sync.Mutex
	lastID    uint64
	backlog   list // accepted, not completely issued
	issuing   bool // a goroutine is issuing the head of the backlog
	recheck   bool // that goroutine must check the head again before it stops
	inFlight  list // completely issued
	resolving bool // a goroutine is resolving the head of inFlight
	// quarantine holds a lost batch and the completed batches after it.
	quarantine    list
	lost          bool // a batch was lost
	quarantined   int
	closing       bool
	cause         error // why the stream is broken, or nil
	causeID       uint64
	causeReported bool  // a ticket has reported cause
	unreportedErr error // failures that no ticket reports
}

// New returns a stream. Call Start to run its goroutines.
func New(o Options) *Stream {
	s := &Stream{
		opts: o, slots: make(chan struct{}, o.Depth), down: make(chan struct{}), wake: make(chan struct{}, 1),
		stopped: make(chan struct{}), closer: make(chan struct{}, 1),
	}
	s.ended, s.end = context.WithCancel(context.Background())
	return s
}

// Start starts the stream's goroutine and the goroutines others of the owner. Their context ends
// when nothing is left to issue or complete except lost batches; they must return then.
func (s *Stream) Start(others ...func(ctx context.Context)) {
	s.running.Go(s.issueLoop)
	for _, f := range others {
		s.running.Go(func() { f(s.ended) })
	}
	go func() { s.running.Wait(); close(s.stopped) }()
}

// Down returns a channel that is closed when the stream is broken or closing and accepts no further
// batches.
func (s *Stream) Down() <-chan struct{} { return s.down }

// Err returns the error that broke the stream, or nil.
func (s *Stream) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// Refusal returns the reason why the stream accepts no further batches. Call it after Down is
// closed.
func (s *Stream) Refusal() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refusal()
}

func (s *Stream) refusal() error {
	if s.cause != nil {
		s.causeReported = true
		return fmt.Errorf("%w: %w", errdefs.ErrBroken, s.cause)
	}
	return fmt.Errorf("%s: %w", s.opts.Name, errdefs.ErrClosed)
}

// Break breaks the stream because of a failure that belongs to no batch. The failure counts as one
// of the oldest unresolved batch. If the stream is already broken, Close returns the failure.
func (s *Stream) Break(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		s.unreportedErr = errors.Join(s.unreportedErr, cause)
		return
	}
	id := s.lastID
	for _, l := range []*list{&s.backlog, &s.inFlight} {
		if l.head != nil {
			id = min(id, l.head.id)
		}
	}
	s.breakBy(id, cause)
}

// breakBy makes the stream refuse new batches and fail all batches after number id. Of several
// causes, the first in stream order is kept. The caller holds mu.
func (s *Stream) breakBy(id uint64, cause error) {
	if s.cause != nil && s.causeID <= id {
		return
	}
	if s.cause == nil && !s.closing {
		close(s.down)
	}
	s.cause, s.causeID = cause, id
	s.Wake()
}

// Keep records a failure that no ticket reports. Close returns it.
func (s *Stream) Keep(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unreportedErr = errors.Join(s.unreportedErr, err)
}

// Quarantined returns the number of quarantined batches: lost batches, and later ones that have
// nothing in flight.
func (s *Stream) Quarantined() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.quarantined
}

// Close implements stream.Stream. An error other than that of ctx comes from the hardware, or is a
// failure that no ticket has reported. It wraps errdefs.ErrBusy until the hardware has stopped.
// Another call continues where Close stopped.
func (s *Stream) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closing {
		s.closing = true
		if s.cause == nil {
			close(s.down)
		}
	}
	s.endIfOver()
	s.mu.Unlock()
	s.Wake()

	select {
	case s.closer <- struct{}{}:
		defer func() { <-s.closer }()
	case <-ctx.Done():
		return s.unclosed(context.Cause(ctx))
	}
	select {
	case <-s.stopped:
	case <-ctx.Done():
		return s.unclosed(context.Cause(ctx))
	}
	if s.opts.Stop != nil {
		if err := s.opts.Stop(ctx); err != nil {
			return s.unclosed(err)
		}
	}
	s.release()

	err := s.opts.Free()
	s.mu.Lock()
	defer s.mu.Unlock()
	err = errors.Join(err, s.unreportedErr)
	s.unreportedErr = nil
	if s.cause != nil && !s.causeReported {
		s.causeReported = true
		err = errors.Join(err, s.cause)
	}
	if err != nil {
		return fmt.Errorf("close %s: %w", s.opts.Name, err)
	}
	return nil
}

// release resolves quarantined batches after the hardware has stopped.
func (s *Stream) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost, s.inFlight, s.quarantine, s.quarantined = false, s.quarantine, list{}, 0
	for b := s.inFlight.head; b != nil; b = b.next {
		b.lost = false
	}
	s.resolveCompleted()
}

// endIfOver ends the stream's goroutines if they have no work left. The caller holds mu.
func (s *Stream) endIfOver() {
	if s.closing && s.backlog.head == nil && s.inFlight.head == nil && !s.issuing && !s.resolving {
		s.end()
	}
}

// unclosed returns the error of a Close that could not finish, with its cause.
func (s *Stream) unclosed(cause error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Sprintf("%d batches are unresolved", len(s.slots))
	if s.quarantined > 0 {
		text = fmt.Sprintf("%d batches are quarantined, %s", s.quarantined, text)
	}
	err := fmt.Errorf("close %s: %s: %w: %w", s.opts.Name, text, errdefs.ErrBusy, cause)
	if s.unreportedErr != nil {
		err = fmt.Errorf("%w: %w", err, s.unreportedErr)
	}
	return err
}
