package ordered

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
)

// Options say how a stream is made. All but Stop is required.
type Options struct {
	Name  string // of the sort of stream, for errors: "copy stream"
	Depth int    // how many batches and calls may be accepted and unresolved
	// Stop returns nil once the hardware has stopped, for good. Close calls it when nothing is in flight but what is in
	// quarantine, and again after an error. Nil: batches that have landed prove it.
	Stop func(ctx context.Context) error
	// Free gives back what the stream holds, after Stop; after an error it is called again, for what is left.
	Free func() error
}

// Stream is the life of an ordered stream. Safe for concurrent use.
type Stream struct {
	opts Options

	// slots has one element for each batch or call that is accepted and unresolved.
	slots chan struct{}
	// down is closed when the stream takes no more batches: broken or closing.
	down chan struct{}
	// wake tells the issuer to look again. One token is enough: it looks at everything.
	wake chan struct{}
	// ended ends the stream's goroutines, when it is closing and nothing is left to issue or to land; stopped is closed when
	// they have returned.
	ended   context.Context
	end     context.CancelFunc
	running sync.WaitGroup
	stopped chan struct{}
	closer  chan struct{} // token: one Close at a time

	mu          sync.Mutex
	lastID      uint64
	backlog     list // accepted, and not issued whole
	issuing     bool // somebody issues the head of the backlog
	look        bool // he has to look at it again before he stops
	flight      list // issued whole
	settling    bool // somebody resolves the head of those in flight
	quarantine  list // landed as far as is known, behind a batch that is lost or that itself
	lost        bool // a batch was
	quarantined int
	closing     bool
	cause       error // why the stream is broken, or nil
	causeID     uint64
	told        bool  // somebody was told the cause
	untold      error // failures that no ticket tells
}

// New makes a stream whose goroutines do not run yet: see Start.
func New(o Options) *Stream {
	s := &Stream{
		opts: o, slots: make(chan struct{}, o.Depth), down: make(chan struct{}), wake: make(chan struct{}, 1),
		stopped: make(chan struct{}), closer: make(chan struct{}, 1),
	}
	s.ended, s.end = context.WithCancel(context.Background())
	return s
}

// Start starts the stream's goroutine, and others of who has it, which return when their context ends: then nothing is left to
// issue or to land, but what is lost.
func (s *Stream) Start(others ...func(ctx context.Context)) {
	s.running.Go(s.issueLoop)
	for _, f := range others {
		s.running.Go(func() { f(s.ended) })
	}
	go func() { s.running.Wait(); close(s.stopped) }()
}

// Down is closed when the stream takes no more batches: broken or closing.
func (s *Stream) Down() <-chan struct{} { return s.down }

// Err returns why the stream is broken, or nil.
func (s *Stream) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// Refusal says why the stream takes nothing more, once Down is closed.
func (s *Stream) Refusal() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refusal()
}

func (s *Stream) refusal() error {
	if s.cause != nil {
		s.told = true
		return fmt.Errorf("%w: %w", errdefs.ErrBroken, s.cause)
	}
	return fmt.Errorf("%s: %w", s.opts.Name, errdefs.ErrClosed)
}

// Break breaks the stream by a failure that is of no batch: as one of the oldest that is unresolved. If it is broken already,
// Close tells.
func (s *Stream) Break(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		s.untold = errors.Join(s.untold, cause)
		return
	}
	id := s.lastID
	for _, l := range []*list{&s.backlog, &s.flight} {
		if l.head != nil {
			id = min(id, l.head.id)
		}
	}
	s.breakBy(id, cause)
}

// breakBy makes the stream refuse and fail all that comes after batch id. The first cause in the order of the stream stays.
func (s *Stream) breakBy(id uint64, cause error) {
	if s.cause != nil && s.causeID <= id {
		return
	}
	if s.cause == nil && !s.closing {
		close(s.down)
	}
	s.cause, s.causeID = cause, id
	s.Poke()
}

// Keep notes a failure that no ticket tells, for Close.
func (s *Stream) Keep(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.untold = errors.Join(s.untold, err)
}

// Quarantined returns how many batches have nothing left to land, and are unresolved since one that is lost, or one before
// them is.
func (s *Stream) Quarantined() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.quarantined
}

// Close is that of stream.Stream. An error that is not the context's comes from the hardware, or tells what no ticket told;
// calling again goes on where it stopped. While the hardware has not stopped it is errdefs.ErrBusy.
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
	s.Poke()

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
	err = errors.Join(err, s.untold)
	s.untold = nil
	if s.cause != nil && !s.told {
		s.told = true
		err = errors.Join(err, s.cause)
	}
	if err != nil {
		return fmt.Errorf("close %s: %w", s.opts.Name, err)
	}
	return nil
}

// release resolves what is in quarantine: the hardware has stopped.
func (s *Stream) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost, s.flight, s.quarantine, s.quarantined = false, s.quarantine, list{}, 0
	for b := s.flight.head; b != nil; b = b.next {
		b.lost = false
	}
	s.settle()
}

// endIfOver ends the stream's goroutines if nothing is left for them.
func (s *Stream) endIfOver() {
	if s.closing && s.backlog.head == nil && s.flight.head == nil && !s.issuing && !s.settling {
		s.end()
	}
}

// unclosed says why the stream is not closed.
func (s *Stream) unclosed(cause error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Sprintf("%d batches are unresolved", len(s.slots))
	if s.quarantined > 0 {
		text = fmt.Sprintf("%d batches are quarantined, %s", s.quarantined, text)
	}
	err := fmt.Errorf("close %s: %s: %w: %w", s.opts.Name, text, errdefs.ErrBusy, cause)
	if s.untold != nil {
		err = fmt.Errorf("%w: %w", err, s.untold)
	}
	return err
}
