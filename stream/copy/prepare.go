package copy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/move"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// findPaths creates the movers that the device and the options support. It prepares the forced
// path, or with Options.Prepare all paths; by default it prepares only the kernel path, which most
// batches use.
func (s *Stream) findPaths() error {
	o, forced, all := &s.opts, s.opts.Path, &s.movers
	env := &move.Env{
		Device: s.dev, Queue: s.queue, Ring: move.NewRing(s.dev, o.Descriptors), CTAs: o.CTAs, HighPriority: o.HighPriority,
		Forced: forced != stream.PathNone,
	}
	var why [stream.PathCount]error
	all[stream.PathCopyEngine] = move.NewEngine(env)
	all[stream.PathKernel], why[stream.PathKernel] = move.NewKernel(env)
	all[stream.PathStaged], why[stream.PathStaged] = move.NewStaged(env, o.StagingBytes)
	if c := o.NIC; c != nil {
		all[c.Path] = move.NewNIC(env, c.Open, c.Reaches)
	}
	var able, need plan.Paths
	for p, m := range all {
		if m != nil {
			able = able.With(stream.Path(p))
		}
	}
	s.able.Store(uint32(able))
	switch {
	case forced != stream.PathNone:
		err := fmt.Errorf("a copy stream does not support it: %w", errdefs.ErrNotSupported)
		switch {
		case able.Has(forced):
			err = s.prepare(forced)
		case forced < stream.PathCount && why[forced] != nil:
			err = why[forced]
		}
		if err != nil {
			return fmt.Errorf("path %s on device %s %d: %w", forced, s.dev.Info().Driver, s.index, err)
		}
	case o.Prepare:
		need = able
	default: // other paths are prepared when they are first chosen
		need = able & (1 << stream.PathKernel)
	}
	for p := range need.All {
		if err := s.prepare(p); err != nil {
			return err
		}
	}
	return nil
}

// owners yields the movers that own resources.
func (s *Stream) owners(yield func(move.Owner) bool) {
	for _, m := range s.movers {
		if o, ok := m.(move.Owner); ok && !yield(o) {
			return
		}
	}
}

// ensurePrepared prepares a path unless it is already prepared. lost is the reason why the path
// cannot be prepared. err is the reason why the batch cannot be accepted: ctx has ended, or the
// stream is closing or broken.
//
// The driver has no time limit, so a separate goroutine calls it. Close waits for the goroutine by
// the token s.preparing. If ctx ends, the goroutine continues for later batches.
func (s *Stream) ensurePrepared(ctx context.Context, p stream.Path) (lost, err error) {
	if _, ok := s.movers[p].(move.Owner); !ok || s.isPrepared(p) {
		return nil, nil
	}
	select {
	case s.preparing <- struct{}{}:
	case <-s.life.Down():
		return nil, s.life.Refusal()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait to prepare path %s: %w", p, context.Cause(ctx))
	}
	switch {
	case s.isPrepared(p):
		<-s.preparing
		return nil, nil
	case s.isDown():
		<-s.preparing
		return nil, s.life.Refusal() // Close would not free the resources
	case ctx.Err() != nil:
		<-s.preparing
		return nil, context.Cause(ctx)
	}
	done := make(chan error, 1)
	go func() {
		defer func() { <-s.preparing }()
		done <- s.prepare(p)
	}()
	select {
	case lost = <-done:
		return lost, nil
	case <-s.life.Down():
		return nil, s.life.Refusal()
	case <-ctx.Done():
		return nil, fmt.Errorf("prepare path %s: %w", p, context.Cause(ctx))
	}
}

// prepare acquires the resources of a path. The caller has the token s.preparing, or is Open.
func (s *Stream) prepare(p stream.Path) error {
	err := s.nicFailure(p)
	if err != nil {
		err = fmt.Errorf("it failed before: %w", err)
	} else if m, ok := s.movers[p].(move.Owner); ok {
		err = m.Prepare()
	}
	if err != nil {
		return fmt.Errorf("prepare path %s: %w", p, err)
	}
	s.prepared.Or(1 << p)
	return nil
}

// isPrepared reports whether a path is prepared.
func (s *Stream) isPrepared(p stream.Path) bool { return plan.Paths(s.prepared.Load()).Has(p) }

// isDown reports whether the stream accepts no more batches.
func (s *Stream) isDown() bool {
	select {
	case <-s.life.Down():
		return true
	default:
		return false
	}
}

// A path is first suspended for minSuspension, and each further time twice as long.
const (
	minSuspension = time.Second
	maxSuspension = time.Minute
)

// suspensions holds the paths that were suspended for lack of memory. They are retried later,
// because another program may have filled the device temporarily.
type suspensions struct {
	next atomic.Int64 // end of the first suspension, in nanoseconds since epoch, or zero

	mu       sync.Mutex
	until    [stream.PathCount]time.Duration // end of the suspension, since epoch; zero if not suspended
	duration [stream.PathCount]time.Duration // duration of the last suspension
}

// suspend suspends p and returns the duration, or zero if p is already suspended.
func (a *suspensions) suspend(p stream.Path, now time.Duration) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.until[p] != 0 {
		return 0
	}
	a.duration[p] = min(max(2*a.duration[p], minSuspension), maxSuspension)
	a.until[p] = now + a.duration[p]
	a.setNext()
	return a.duration[p]
}

// resume ends expired suspensions and returns their paths.
func (a *suspensions) resume(now time.Duration) (paths plan.Paths) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for p, until := range a.until {
		if until != 0 && until <= now {
			a.until[p] = 0
			paths = paths.With(stream.Path(p))
		}
	}
	a.setNext()
	return paths
}

// setNext updates a.next. The caller holds mu.
func (a *suspensions) setNext() {
	var next time.Duration
	for _, until := range a.until {
		if until != 0 && (next == 0 || until < next) {
			next = until
		}
	}
	a.next.Store(int64(next))
}

// removePath removes a path from the paths that may be chosen.
func (s *Stream) removePath(p stream.Path) { s.able.And(^uint32(1 << p)) }

// dropPath removes a path that could not be prepared. It is suspended if memory was missing, and
// otherwise removed permanently. dropPath returns the cause, with the duration of a suspension.
func (s *Stream) dropPath(p stream.Path, why error) error {
	s.removePath(p)
	if s.nicFailure(p) != nil || !errors.Is(why, errdefs.ErrNoMemory) {
		return why
	}
	if wait := s.suspensions.suspend(p, s.now()); wait > 0 {
		return fmt.Errorf("%w; it is tried again in %v", why, wait)
	}
	return why
}

// resumePaths makes paths whose suspension has ended available again.
func (s *Stream) resumePaths() {
	if next := s.suspensions.next.Load(); next == 0 || s.now() < time.Duration(next) {
		return
	}
	s.able.Or(uint32(s.suspensions.resume(s.now())))
}
