package nic

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/ordered"
)

// Stream is an ordered stream over the loopback queue pairs of NICs. It implements stream.Stream, and not
// stream.EventStream, since no device queue can wait for a NIC. Safe for concurrent use.
type Stream struct {
	opts   Options
	path   stream.Path
	life   *ordered.Stream
	broken sync.Once // counted

	rails       []*rail
	pairs       []*pair // of all rails, in order
	stripeShift int

	// hw is held by who posts or polls. The rest is his, and what rails and pairs say so of.
	hw          sync.Mutex
	outstanding uint64    // requests
	completions uint64    // that were taken
	flying      uses      // by the batches in flight
	heard       time.Time // when a NIC last completed something, or had nothing to do
	watching    bool      // watchdog runs
	lost        bool      // given up: what is outstanding has to be stopped, as completions may not come
	watchdog    clockwork.Timer
	tellers     []*op // begun batches whose page groups are told of, in order

	alert chan struct{} // tells the guard to look
	news  atomic.Bool   // tellers may have something to tell

	// sight is held by who flushes, and by who tells what has landed. It is taken before hw.
	sight sync.Mutex
	// Devices where everything is visible that had landed when so many completions were taken.
	visible   classes
	visibleAt uint64

	mu      sync.Mutex
	spare   []*manifest
	alarm   error // what a device said of itself, or nil
	alarmed time.Time
}

var _ stream.Stream = (*Stream)(nil)

// Open opens a stream with queue pairs of its own on every NIC. The stream does not own the NICs, whose Set must outlive it.
// Errors: ErrInvalid for options, ErrBroken where no port is active, and those of the verbs; everything is closed again then.
func Open(o Options) (*Stream, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("open NIC stream: %w", err)
	}
	o.setDefaults()
	s := &Stream{
		opts: o, stripeShift: bits.TrailingZeros64(uint64(o.StripeBytes)),
		watchdog: o.Clock.NewTimer(time.Hour), alert: make(chan struct{}, 1),
	}
	s.watchdog.Stop()
	s.life = ordered.New(ordered.Options{Name: "NIC stream", Depth: o.QueueDepth, Free: s.free})
	if err := s.build(); err != nil {
		err = fmt.Errorf("open NIC stream: %w", err)
		if closeErr := s.free(); closeErr != nil {
			err = errors.Join(err, closeErr, s.free()) // once more: nobody else could
		}
		return nil, err
	}
	others := []func(context.Context){s.guard}
	for _, l := range s.rails {
		others = append(others, func(ctx context.Context) { s.listen(ctx, l) })
	}
	s.life.Start(others...)
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
func (s *Stream) Err() error { return s.life.Err() }

// Close implements stream.Stream. An error that is not the context's comes from a NIC: calling again goes on where it
// stopped, and returns nil once everything is given back. While requests have not ended it is errdefs.ErrBusy.
func (s *Stream) Close(ctx context.Context) error {
	s.wakeGuard()
	return s.life.Close(ctx)
}

// free closes what the rails hold. What is closed is not closed again.
func (s *Stream) free() error {
	s.hw.Lock() // somebody may still be polling for a ticket that has resolved
	defer s.hw.Unlock()
	var errs []error
	for _, l := range s.rails {
		if err := l.close(); err != nil {
			errs = append(errs, fmt.Errorf("NIC %s: %w", l.reg.Name(), err))
		}
	}
	return errors.Join(errs...)
}
