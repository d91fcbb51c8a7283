package copy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/move"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/stream/ordered"
)

// Stream is an ordered stream on one queue of a device. It implements stream.EventStream. It is
// safe for concurrent use.
type Stream struct {
	dev   device.Device
	index int // device index
	opts  Options
	life  *ordered.Stream

	// movers holds the paths by stream.Path. able is the set of paths that may be chosen, prepared
	// the set of paths with resources (both plan.Paths). preparing holds a token while one
	// goroutine prepares a path.
	movers         [stream.PathCount]move.Mover
	able, prepared atomic.Uint32
	suspensions    suspensions
	preparing      chan struct{}
	planner        Planner
	epoch          time.Time    // time when the stream was opened
	finished       atomic.Int64 // end of the last batch, in nanoseconds since epoch
	// ahead is the predicted time of accepted and unresolved batches, in nanoseconds.
	ahead atomic.Int64
	last  atomic.Uint32 // path of the last accepted batch

	// wake wakes the completer. It holds one token.
	wake chan struct{}
	// completing is held while steps are completed, also while the completer waits for the device.
	completing sync.Mutex
	// completerActive is set while the completer holds completing or is about to lock it.
	completerActive atomic.Bool
	// handOffTimer wakes the completer for a batch that was left to Ticket.Wait. handOffArmed is
	// set while the timer runs.
	handOffTimer clockwork.Timer
	handOffArmed atomic.Bool
	// pacing resumes issuing when the pace permits the next step.
	pacing clockwork.Timer

	// Only the issuing goroutine uses the following fields. latest is the path of the last issued
	// step. waitedForEvent is set after the queue was made to wait for an event of another queue.
	queue          device.Queue
	latest         stream.Path
	waitedForEvent bool
	stepping       item // the step being issued
	pacer          plan.Pacer

	inFlight stepQueue
}

var _ stream.EventStream = (*Stream)(nil)

// Open opens a stream with a new queue. It returns ErrNotSupported if the device does not support a
// forced path. The stream does not own dev, which must outlive it.
func Open(dev device.Device, o Options) (*Stream, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("open copy stream: %w", err)
	}
	o = o.withDefaults()
	q, err := dev.OpenQueue(device.QueueOptions{HighPriority: o.HighPriority, Events: o.events()})
	if err != nil {
		return nil, fmt.Errorf("open copy stream: open queue: %w", err)
	}
	s := &Stream{
		dev:       dev,
		index:     dev.Info().Index,
		opts:      o,
		epoch:     o.Clock.Now(),
		wake:      make(chan struct{}, 1),
		preparing: make(chan struct{}, 1),
		queue:     q,
	}
	s.life = ordered.New(ordered.Options{Name: "copy stream", Depth: o.QueueDepth, Stop: s.stop, Free: s.free})
	s.handOffTimer = o.Clock.AfterFunc(handOff, s.handOffExpired)
	s.pacing = o.Clock.AfterFunc(handOff, s.life.Wake)
	if s.planner, err = o.planner(); err == nil {
		err = s.findPaths()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open copy stream: %w", err), s.closeUnopened())
	}
	s.life.Start(s.completeLoop)
	return s, nil
}

// closeUnopened frees the resources of a stream that Open could not open. It retries once, because
// the caller has no stream to close.
func (s *Stream) closeUnopened() error {
	ctx, cancel := context.WithTimeout(context.Background(), move.UndoTimeout)
	defer cancel()
	s.life.Start()
	err := s.life.Close(ctx)
	if err != nil {
		err = errors.Join(err, s.life.Close(ctx))
	}
	return err
}

// now returns the time since the stream was opened.
func (s *Stream) now() time.Duration { return s.opts.Clock.Since(s.epoch) }

// reaches returns the reason why the stream's device cannot address r, or nil.
func (s *Stream) reaches(r *mem.Region) error {
	if r.Dev() == 0 {
		return fmt.Errorf("%s has no device address: %w", r, errdefs.ErrInvalid)
	}
	if err := r.Origin().Lost(); err != nil {
		return err
	}
	if r.Kind() == mem.KindDevice && (r.Device() != s.index || r.Origin() != nil) {
		if p, ok := s.dev.(device.Peerer); !ok || !p.Reaches(r) {
			return fmt.Errorf("%s belongs neither to device %d nor to a peer in its reach: %w", r, s.index, errdefs.ErrInvalid)
		}
	}
	return nil
}

// Policy returns the policy of the stream's options.
func (s *Stream) Policy() plan.Policy { return s.opts.Policy }

// Err returns the error that broke the stream, or nil.
func (s *Stream) Err() error { return s.life.Err() }

// Quarantined returns the number of tickets that stay unresolved after a failure, because the
// device may still access their memory. They resolve when Close has seen the queue idle.
func (s *Stream) Quarantined() int { return s.life.Quarantined() }

// Close implements stream.Stream. Errors other than that of the context come from the device, and a
// further call retries. While the device is active, the error is errdefs.ErrBusy.
func (s *Stream) Close(ctx context.Context) error {
	s.wakeCompleter()
	return s.life.Close(ctx)
}

// stop closes the queues of the stream and the movers, and keeps their errors. It waits until a
// path that is being prepared is done. No other path is prepared later, because the stream is down.
func (s *Stream) stop(ctx context.Context) error {
	select {
	case s.preparing <- struct{}{}:
		defer func() { <-s.preparing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.handOffTimer.Stop()
	s.pacing.Stop()
	if s.queue != nil {
		failed, err := move.CloseQueue(ctx, s.queue)
		if err != nil {
			return err
		}
		s.queue = nil
		s.life.Keep(failed)
	}
	for o := range s.owners {
		failed, err := o.Quiesce(ctx)
		s.life.Keep(failed)
		if err != nil {
			return err
		}
	}
	return nil
}

// free frees all memory. All queues must be idle. After an error a further call continues.
func (s *Stream) free() error {
	var errs []error
	for o := range s.owners {
		errs = append(errs, o.Free())
	}
	return errors.Join(errs...)
}
