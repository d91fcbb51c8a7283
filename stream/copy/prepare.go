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

// findPaths makes the movers that the device has and the options want, and prepares what was asked for or most batches need.
func (s *Stream) findPaths() error {
	o, forced, all := &s.opts, s.opts.Path, &s.movers
	env := &move.Env{
		Device: s.dev, Queue: s.queue, Ring: move.NewRing(s.dev, o.Descriptors), CTAs: o.CTAs, HighPriority: o.HighPriority,
		Forced: forced != stream.PathNone, Now: s.now,
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
		err := fmt.Errorf("a copy stream does not have it: %w", errdefs.ErrNotSupported)
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
	default: // most batches take a kernel; the others get what they need when they are first chosen
		need = able & (1 << stream.PathKernel)
	}
	for p := range need.All {
		if err := s.prepare(p); err != nil {
			return err
		}
	}
	return nil
}

// owners yields the movers that have something of their own.
func (s *Stream) owners(yield func(move.Owner) bool) {
	for _, m := range s.movers {
		if o, ok := m.(move.Owner); ok && !yield(o) {
			return
		}
	}
}

// ready has a path get what it needs, if that was not done yet. lost is why it cannot be had; err, why the batch cannot be taken
// at all: ctx ended, or the stream is down.
//
// The driver takes as long as it likes, so a goroutine calls it, which Close joins by the token. Who stops waiting leaves the
// path to those who come after him.
func (s *Stream) ready(ctx context.Context, p stream.Path) (lost, err error) {
	if _, ok := s.movers[p].(move.Owner); !ok || s.has(p) {
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
	case s.has(p):
		<-s.preparing
		return nil, nil
	case s.isDown():
		<-s.preparing
		return nil, s.life.Refusal() // what it got now, nobody would give back
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

// prepare has a path get what it needs. The caller has the token, or is Open.
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

// has reports whether a path is prepared.
func (s *Stream) has(p stream.Path) bool { return plan.Paths(s.prepared.Load()).Has(p) }

// isDown reports whether the stream takes no more batches.
func (s *Stream) isDown() bool {
	select {
	case <-s.life.Down():
		return true
	default:
		return false
	}
}

// For how long a path is left alone that found no memory: the first time, and at most, as it doubles each time.
const (
	firstAbsence = time.Second
	maxAbsence   = time.Minute
)

// absent are the paths that found no memory, until they may be tried again. An engine beside the stream fills its device now and
// then, and that passes.
type absent struct {
	next atomic.Int64 // when the first of them may be, in nanoseconds since the stream was opened; zero: there is none

	mu    sync.Mutex
	until [stream.PathCount]time.Duration // since the stream was opened; zero: not absent
	last  [stream.PathCount]time.Duration // how long it was absent the last time
}

// leave notes that p is absent from now on, and returns for how long; zero where it was so already.
func (a *absent) leave(p stream.Path, now time.Duration) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.until[p] != 0 {
		return 0
	}
	a.last[p] = min(max(2*a.last[p], firstAbsence), maxAbsence)
	a.until[p] = now + a.last[p]
	a.setNext()
	return a.last[p]
}

// back returns those that may be tried again.
func (a *absent) back(now time.Duration) (paths plan.Paths) {
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

// setNext is called with mu held.
func (a *absent) setNext() {
	var next time.Duration
	for _, until := range a.until {
		if until != 0 && (next == 0 || until < next) {
			next = until
		}
	}
	a.next.Store(int64(next))
}

// giveUp takes a path away for good.
func (s *Stream) giveUp(p stream.Path) { s.able.And(^uint32(1 << p)) }

// lose takes a path away that could not be prepared: for a while where there was no memory, else for good. It returns why, and
// for how long.
func (s *Stream) lose(p stream.Path, why error) error {
	s.giveUp(p)
	if s.nicFailure(p) != nil || !errors.Is(why, errdefs.ErrNoMemory) {
		return why
	}
	if wait := s.absent.leave(p, s.now()); wait > 0 {
		return fmt.Errorf("%w; it is tried again in %v", why, wait)
	}
	return why
}

// readmit gives back the paths that have been absent for long enough.
func (s *Stream) readmit() {
	if next := s.absent.next.Load(); next == 0 || s.now() < time.Duration(next) {
		return
	}
	s.able.Or(uint32(s.absent.back(s.now())))
}
