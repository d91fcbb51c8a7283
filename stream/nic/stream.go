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

// Stream is an ordered stream over the loopback queue pairs of NICs. It implements stream.Stream,
// but not stream.EventStream, because device queues cannot wait for a NIC. It is safe for
// concurrent use.
type Stream struct {
	opts   Options
	path   stream.Path
	life   *ordered.Stream
	broken sync.Once // increments the rails' broken counters

	rails       []*rail
	pairs       []*pair // of all rails, in order
	stripeShift int

	// hw guards queue pairs, completion queues, the fields up to reporting, and those fields of
	// rails and pairs whose comments refer to it.
	hw             sync.Mutex
	outstanding    uint64    // requests posted and not completed
	completions    uint64    // number of completions so far
	inFlight       uses      // memory used by the batches in flight
	lastCompletion time.Time // time of the last completion, or of the first post to idle NICs
	watching       bool      // the watchdog timer is running
	lost           bool      // completions may not arrive; stopLost ends outstanding requests
	watchdog       clockwork.Timer
	reporting      []*op // started batches with reports, in order

	guardWake     chan struct{} // wakes guard
	reportPending atomic.Bool   // groups of a batch in reporting may have completed

	// reportMu serializes flushes and reports. Acquire it before hw.
	reportMu sync.Mutex
	// visible holds the devices on which all writes up to completion number visibleAt are visible.
	visible   classes
	visibleAt uint64

	mu            sync.Mutex
	freeManifests []*manifest
	deviceErr     error // first asynchronous error of a device, or nil
	deviceErrAt   time.Time
}

var _ stream.Stream = (*Stream)(nil)

// Open opens a stream with new queue pairs on every NIC. The stream does not own the NICs, whose
// Set must outlive it. Errors: ErrInvalid for options, ErrBroken if no port is active, and those of
// the verbs. After an error everything is closed.
func Open(o Options) (*Stream, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("open NIC stream: %w", err)
	}
	o.setDefaults()
	s := &Stream{
		opts: o, stripeShift: bits.TrailingZeros64(uint64(o.StripeBytes)),
		watchdog: o.Clock.NewTimer(time.Hour), guardWake: make(chan struct{}, 1),
	}
	s.watchdog.Stop()
	s.life = ordered.New(ordered.Options{Name: "NIC stream", Depth: o.QueueDepth, Free: s.free})
	if err := s.build(); err != nil {
		err = fmt.Errorf("open NIC stream: %w", err)
		if closeErr := s.free(); closeErr != nil {
			err = errors.Join(err, closeErr, s.free()) // retry, because the caller has no stream to close
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

// build opens the rails and sets s.path.
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
			return fmt.Errorf("NIC %s uses %s, the others use %s: %w", l.reg.Name(), path, s.path, errdefs.ErrInvalid)
		}
		s.path = path
	}
	return nil
}

// softProvider is the provider name of software NICs, which have a separate path.
const softProvider = "soft"

// Path returns the path of the stream's batches: stream.PathNIC, or stream.PathNICSoft for software
// NICs.
func (s *Stream) Path() stream.Path { return s.path }

// Err returns the error that broke the stream, or nil.
func (s *Stream) Err() error { return s.life.Err() }

// Close implements stream.Stream. Errors other than that of the context come from a NIC. A further
// call continues where Close stopped and returns nil once everything is released. While requests
// are outstanding the error is errdefs.ErrBusy.
func (s *Stream) Close(ctx context.Context) error {
	s.wakeGuard()
	return s.life.Close(ctx)
}

// free closes the rails that are open.
func (s *Stream) free() error {
	s.hw.Lock() // a Poll of a resolved ticket may still be running
	defer s.hw.Unlock()
	var errs []error
	for _, l := range s.rails {
		if err := l.close(); err != nil {
			errs = append(errs, fmt.Errorf("NIC %s: %w", l.reg.Name(), err))
		}
	}
	return errors.Join(errs...)
}
