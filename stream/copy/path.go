package copy

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// mover is one path of a stream. But for available and takes, only whoever issues calls its methods.
type mover interface {
	// available returns why device and queue lack the path, an ErrNotSupported, or nil. Open calls it once.
	available() error
	// takes reports whether the path can carry a batch.
	takes(v *survey) bool
	// calls is the most calls of the device that a step counts for, with those of events.
	calls() int
	// room reports whether there is place for another step of o, and where. The caller holds Stream.mu.
	room(o *op) (span, bool)
	// step issues a part of o, as much as fits at once, and reports whether that was the last. If it leaves it.event and
	// it.lost unset, the stream records an event on its queue.
	step(o *op, sp span, it *item) (done bool, err error)
}

// owner is a mover with memory or queues of its own.
type owner interface {
	preparer
	// turn makes what is enqueued on the stream's queue from now on come after what the mover has issued, and what the
	// mover issues later come after that. It is called when work of another path, or a control, is next.
	turn() error
	// quiesce waits until nothing that the mover issued runs, and closes its queues. failed is what those said that are
	// closed all the same, once; after err it may be called again. The stream's queue is closed already.
	quiesce(ctx context.Context) (failed, err error)
	// free gives the memory back, after quiesce. It may be called again.
	free() error
}

// newMovers returns the paths that a stream knows, by stream.Path.
func newMovers(s *Stream) [stream.PathCount]mover {
	all := [stream.PathCount]mover{
		stream.PathCopyEngine: &engine{s: s},
		stream.PathKernel:     &kernel{s: s},
		stream.PathStaged:     &staged{s: s},
		stream.PathResident:   newResident(s),
	}
	if c := s.opts.NIC; c != nil {
		all[c.Path] = &carried{s: s, by: c}
	}
	return all
}

// apartPaths are those between which and the stream's queue the device keeps no order, so that the host has to.
const apartPaths plan.Paths = 1<<stream.PathResident | 1<<stream.PathNIC | 1<<stream.PathNICSoft

func isApart(p stream.Path) bool { return apartPaths.Has(p) }

// findPaths makes the movers, and leaves those that the device has and the options want.
func (s *Stream) findPaths() error {
	s.movers = newMovers(s)
	forced := s.opts.Path
	lacks := func(err error) error {
		return fmt.Errorf("path %s on device %s %d: %w", forced, s.dev.Info().Driver, s.index, err)
	}
	if forced >= stream.PathCount || forced != stream.PathNone && s.movers[forced] == nil {
		return lacks(fmt.Errorf("a copy stream does not have it: %w", errdefs.ErrNotSupported))
	}
	var able plan.Paths
	for p, m := range s.movers {
		if m == nil {
			continue
		}
		err := m.available()
		switch {
		case err == nil:
			able = able.With(stream.Path(p))
		case stream.Path(p) == forced:
			return lacks(err)
		case !errors.Is(err, errdefs.ErrNotSupported):
			return fmt.Errorf("look for path %s: %w", stream.Path(p), err)
		}
	}
	s.able.Store(uint32(able))
	if forced != stream.PathNone {
		if err := s.prepareNow(forced); err != nil {
			return lacks(err)
		}
		return nil
	}
	if s.opts.Prepare {
		return s.prepareAll(able)
	}
	// Most batches take a kernel; the others get what they need when they are first chosen.
	if able.Has(stream.PathKernel) {
		return s.prepareNow(stream.PathKernel)
	}
	return nil
}

// owners yields the movers that have something of their own.
func (s *Stream) owners(yield func(owner) bool) {
	for _, m := range s.movers {
		if o, ok := m.(owner); ok && !yield(o) {
			return
		}
	}
}

// turnTo lets path be what issues next. PathNone: a control.
func (s *Stream) turnTo(path stream.Path) error {
	if s.latest == path && path != stream.PathNone {
		return nil
	}
	if o, ok := s.movers[s.latest].(owner); ok {
		if err := o.turn(); err != nil {
			return fmt.Errorf("turn from path %s to %s: %w", s.latest, path, err)
		}
	}
	s.latest = path
	return nil
}
