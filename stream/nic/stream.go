package nic

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
)

// Stream is an ordered stream over the loopback queue pairs of NICs. It implements stream.Stream, and not
// stream.EventStream, since no device queue can wait for a NIC. Safe for concurrent use.
type Stream struct {
	opts Options
	path stream.Path

	// slots has one element for each batch that is accepted and unresolved.
	slots chan struct{}
	// down is closed when the stream takes no more batches: broken or closing.
	down chan struct{}
	// wake tells the scheduler to look again. One token is enough: it looks at everything.
	wake chan struct{}
	// stopped is closed when scheduler and completers have returned; quit ends them.
	stopped chan struct{}
	quit    context.CancelFunc
	closer  chan struct{} // token: one Close at a time

	// turn is a token: who has it posts, polls and resolves. again asks him for one more look.
	turn  chan struct{}
	again atomic.Bool

	// Of whoever has the turn.
	rails       []*rail
	pairs       []*pair // of all rails, in order
	stripeShift int
	outstanding uint64    // requests
	flying      uses      // by the batches in flight
	heard       time.Time // when a NIC last completed something, or had nothing to do
	watching    bool      // watchdog runs
	lost        bool      // given up: what is outstanding has to be stopped, as completions may not come
	tried       bool      // to stop it, since
	watchdog    *time.Timer

	mu         sync.Mutex
	head, tail *op // accepted and unresolved, in order
	next       *op // the first of them that is not posted whole
	lastID     uint64
	unmet      <-chan struct{} // what next waits for, or nil
	watched    <-chan struct{} // what the scheduler waits for, or nil
	spare      []*manifest
	closing    bool
	cause      error // why the stream is broken, or nil
	causeID    uint64
	alarm      error // what a device said of itself, or nil
	alarmed    time.Time
	said       bool  // somebody was told the cause
	unsaid     error // failures of giving back that Close has to tell
}

var _ stream.Stream = (*Stream)(nil)

// Open opens a stream with queue pairs of its own on every NIC. The stream does not own the NICs, whose Set must outlive it.
// Errors: ErrInvalid for options, ErrBroken where no port is active, and those of the verbs; everything is closed again then.
func Open(o Options) (*Stream, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("open NIC stream: %w", err)
	}
	o.setDefaults()
	ctx, quit := context.WithCancel(context.Background())
	s := &Stream{
		opts: o, slots: make(chan struct{}, o.QueueDepth), down: make(chan struct{}), wake: make(chan struct{}, 1),
		stopped: make(chan struct{}), quit: quit, closer: make(chan struct{}, 1), turn: make(chan struct{}, 1),
		stripeShift: bits.TrailingZeros64(uint64(o.StripeBytes)), watchdog: time.NewTimer(time.Hour),
	}
	s.watchdog.Stop()
	if err := s.build(); err != nil {
		quit()
		err = fmt.Errorf("open NIC stream: %w", err)
		if closeErr := s.free(); closeErr != nil {
			err = errors.Join(err, closeErr, s.free()) // once more: nobody else could
		}
		return nil, err
	}
	var done sync.WaitGroup
	done.Go(s.schedule)
	for _, l := range s.rails {
		done.Go(func() { s.listen(ctx, l) })
	}
	go func() { done.Wait(); close(s.stopped) }()
	return s, nil
}

// build opens the rails, and says by which path they lead.
func (s *Stream) build() error {
	for i := range s.opts.NICs {
		l := &rail{index: i, reg: s.opts.NICs[i].Registry, counters: s.opts.NICs[i].Counters}
		if l.counters == nil {
			l.counters = new(Counters)
		}
		s.rails = append(s.rails, l)
		if err := l.open(s, s.opts.NICs[i].Connect); err != nil {
			return fmt.Errorf("NIC %s: %w", l.reg.Name(), err)
		}
		path := stream.PathNIC
		if l.reg.Device().Info().Provider == softProvider {
			path = stream.PathNICSoft
		}
		if s.path != stream.PathNone && s.path != path {
			return fmt.Errorf("NIC %s is by %s and the others by %s: %w", l.reg.Name(), path, s.path, errdefs.ErrInvalid)
		}
		s.path = path
	}
	return nil
}

// softProvider is the name of the provider whose figures are kept apart.
const softProvider = "soft"

// Path returns how the stream's batches travel: stream.PathNIC, or stream.PathNICSoft with NICs in software.
func (s *Stream) Path() stream.Path { return s.path }

// Err returns why the stream is broken, or nil.
func (s *Stream) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// Close implements stream.Stream. An error that is not the context's comes from a NIC: calling again goes on where it
// stopped, and returns nil once everything is given back.
func (s *Stream) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closing {
		s.closing = true
		if s.cause == nil {
			close(s.down)
		}
	}
	s.mu.Unlock()
	s.poke()

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
	s.turn <- struct{}{} // somebody may still be polling for a ticket that has resolved
	defer func() { <-s.turn }()
	err := s.free()
	s.mu.Lock()
	defer s.mu.Unlock()
	err = errors.Join(err, s.unsaid)
	s.unsaid = nil
	if s.cause != nil && !s.said {
		s.said = true
		err = errors.Join(err, s.cause)
	}
	if err != nil {
		return fmt.Errorf("close NIC stream: %w", err)
	}
	return nil
}

// free closes what the rails hold. What is closed is not closed again.
func (s *Stream) free() error {
	var errs []error
	for _, l := range s.rails {
		if err := l.close(); err != nil {
			errs = append(errs, fmt.Errorf("NIC %s: %w", l.reg.Name(), err))
		}
	}
	return errors.Join(errs...)
}

func (s *Stream) unclosed(cause error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unsaid != nil {
		return fmt.Errorf("close NIC stream: %d batches are unresolved: %w: %w", len(s.slots), cause, s.unsaid)
	}
	return fmt.Errorf("close NIC stream: %d batches are unresolved: %w", len(s.slots), cause)
}
