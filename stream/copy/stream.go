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

// Stream is an ordered stream on one queue of a device. It implements stream.EventStream. Safe for concurrent use.
type Stream struct {
	dev   device.Device
	index int // of dev
	opts  Options
	life  *ordered.Stream

	// movers are the paths by stream.Path. able is the set of those that the device has and that are not absent, prepared of
	// those that have what they need (plan.Paths both); preparing is a token: one at a time gets it.
	movers         [stream.PathCount]move.Mover
	able, prepared atomic.Uint32
	absent         absent
	preparing      chan struct{}
	planner        Planner
	epoch          time.Time    // when the stream was opened
	finished       atomic.Int64 // when the last batch was, in nanoseconds since then
	// ahead is the predicted time of what is accepted and unresolved, in nanoseconds.
	ahead atomic.Int64
	last  atomic.Uint32 // the path of the batch that was accepted last

	// watch tells the completer that something is in flight that nobody may be polling for. One token is enough.
	watch chan struct{}
	// completing is held by whoever completes, one goroutine at a time, while the completer waits for the device too.
	completing sync.Mutex
	// awake: the completer holds that, or is about to take it.
	awake atomic.Bool
	// later wakes the completer for a batch that was left to Ticket.Wait; armed: it will.
	later clockwork.Timer
	armed atomic.Bool
	// pacing has the issuer look again when the head of the backlog may go on.
	pacing clockwork.Timer

	// The rest is used by whoever issues. latest is the path that issued last, waited that queue was told to wait for somebody
	// else's event since.
	queue    device.Queue
	latest   stream.Path
	waited   bool
	stepping item // what step works on
	pacer    plan.Pacer

	flight flight
}

var _ stream.EventStream = (*Stream)(nil)

// Open opens a stream on a queue of its own. A forced path that the device lacks is ErrNotSupported. The stream does not
// own dev, which must outlive it.
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
		watch:     make(chan struct{}, 1),
		preparing: make(chan struct{}, 1),
		queue:     q,
	}
	s.life = ordered.New(ordered.Options{Name: "copy stream", Depth: o.QueueDepth, Stop: s.stop, Free: s.free})
	s.later = o.Clock.AfterFunc(unattended, s.lookLater)
	s.pacing = o.Clock.AfterFunc(unattended, s.life.Poke)
	if s.planner, err = o.planner(); err == nil {
		err = s.findPaths()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open copy stream: %w", err), s.undo())
	}
	s.life.Start(s.completeLoop)
	return s, nil
}

// undo gives back what a stream has got that could not be opened. As nobody could try again later, it does that itself.
func (s *Stream) undo() error {
	ctx, cancel := context.WithTimeout(context.Background(), move.UndoTimeout)
	defer cancel()
	s.life.Start()
	err := s.life.Close(ctx)
	if err != nil {
		err = errors.Join(err, s.life.Close(ctx))
	}
	return err
}

// now is the time since the stream was opened.
func (s *Stream) now() time.Duration { return s.opts.Clock.Since(s.epoch) }

// reaches returns why the stream's device cannot address r, or nil.
func (s *Stream) reaches(r *mem.Region) error {
	if r.Dev() == 0 {
		return fmt.Errorf("%s has no device address: %w", r, errdefs.ErrInvalid)
	}
	if err := r.Origin().Lost(); err != nil {
		return err
	}
	if r.Kind() == mem.KindDevice && (r.Device() != s.index || r.Origin() != nil) {
		if p, ok := s.dev.(device.Peerer); !ok || !p.Reaches(r) {
			return fmt.Errorf("%s is neither of device %d nor of a peer that it reaches: %w", r, s.index, errdefs.ErrInvalid)
		}
	}
	return nil
}

// Policy returns what the stream's batches are chosen for, as it was opened.
func (s *Stream) Policy() plan.Policy { return s.opts.Policy }

// Err returns why the stream is broken, or nil.
func (s *Stream) Err() error { return s.life.Err() }

// Quarantined returns how many tickets are unresolved because the device failed in a way that does not tell when it
// stops touching their memory. They resolve when Close has seen the queue idle.
func (s *Stream) Quarantined() int { return s.life.Quarantined() }

// Close implements stream.Stream. An error that is not the context's comes from the device; calling again tries again. While
// the device has not stopped it is errdefs.ErrBusy.
func (s *Stream) Close(ctx context.Context) error {
	s.look()
	return s.life.Close(ctx)
}

// stop closes the stream's queue and those of the movers, and keeps what they said. Some path may still be getting memory or
// queues: once that is over no other begins, as the stream is down.
func (s *Stream) stop(ctx context.Context) error {
	select {
	case s.preparing <- struct{}{}:
		defer func() { <-s.preparing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.later.Stop()
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

// free gives the memory back, once all queues are idle: all that the driver takes. What is done is forgotten, so that a Close
// that failed half-way goes on where it stopped.
func (s *Stream) free() error {
	var errs []error
	for o := range s.owners {
		errs = append(errs, o.Free())
	}
	return errors.Join(errs...)
}
