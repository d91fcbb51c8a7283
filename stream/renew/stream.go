package renew

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// Options configure a Stream. All fields must be set.
type Options struct {
	// Name names the stream in errors.
	Name string
	// Open opens a stream. It is called on first use and after a stream broke, by one goroutine at
	// a time. The Stream closes the result.
	Open func() (stream.Stream, error)
	// Clock times the probes.
	Clock clockwork.Clock
	// Retried is called when a Submit or a Close is tried again.
	Retried func()
	// Reopened is called when a stream has replaced one that failed with cause. No lock is held.
	Reopened func(cause error)
}

// Stream submits batches to a stream that it renews. New returns one.
type Stream struct {
	o Options
	// openLock has one element while a goroutine opens a stream, so that only one stream is opened.
	// Unlike a mutex it can be awaited with a context.
	openLock chan struct{}
	// ctx is canceled to stop the goroutines that close retired streams.
	ctx    context.Context
	cancel context.CancelFunc

	submitted, resolved atomic.Int64  // tickets
	quit                chan struct{} // closed to stop watch
	watcherDone         chan struct{} // closed when watch has returned

	mu        sync.Mutex
	cur       stream.Stream // nil before the first use and after a failure
	brokenErr error         // failure of the last stream, or nil
	retired   []*retiredStream
	closed    bool
}

// New returns a Stream. It opens no stream yet, and starts the goroutine that probes streams.
func New(o Options) *Stream {
	s := &Stream{o: o, openLock: make(chan struct{}, 1), quit: make(chan struct{}), watcherDone: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	go s.watch()
	return s
}

// Name returns Options.Name.
func (s *Stream) Name() string { return s.o.Name }

// Resolved records that one ticket of Submit has resolved. The Stream probes its current stream if
// tickets stay unresolved.
func (s *Stream) Resolved() { s.resolved.Add(1) }

// probeEvery is the period without resolved tickets after which watch probes the stream.
const probeEvery = time.Second

// watch detects broken streams while no batch is submitted. If a device cannot confirm that a copy
// has stopped, the ticket resolves only when its stream is closed. Therefore watch submits an empty
// batch, and retires a stream that refuses it as broken.
func (s *Stream) watch() {
	defer close(s.watcherDone)
	tick := s.o.Clock.NewTicker(probeEvery)
	defer tick.Stop()
	last := int64(-1)
	for {
		select {
		case <-tick.Chan():
		case <-s.quit:
			return
		}
		resolved := s.resolved.Load()
		if resolved == s.submitted.Load() || resolved != last {
			last = resolved
			continue
		}
		if st, _ := s.current(); st != nil {
			s.probe(st)
		}
	}
}

// probe retires st if it refuses an empty batch because it is broken.
func (s *Stream) probe(st stream.Stream) {
	ctx, cancel := context.WithTimeout(s.ctx, probeEvery)
	defer cancel()
	if _, err := st.Submit(ctx, &mem.Batch{}); isBroken(err) {
		s.retire(st, err)
	}
}

// isBroken reports whether an error of Submit means that the stream accepts no more batches.
func isBroken(err error) bool {
	return errors.Is(err, errdefs.ErrBroken) || errors.Is(err, errdefs.ErrClosed)
}

// Submit submits b to the stream. The batch starts after the device work in after. If the stream
// was already broken, it has not accessed b: Submit then replaces the stream and retries once. The
// caller must call Resolved when the ticket has resolved.
func (s *Stream) Submit(ctx context.Context, b *mem.Batch, after ...stream.Recorded) (*stream.Ticket, error) {
	for try := 0; ; try++ {
		st, err := s.get(ctx)
		if err != nil {
			return nil, err
		}
		var t *stream.Ticket
		if err = orderAfter(ctx, st, after); err == nil {
			t, err = st.Submit(ctx, b)
		}
		if err == nil {
			s.submitted.Add(1)
			return t, nil
		}
		broken := isBroken(err)
		if broken {
			s.retire(st, err)
		}
		if !broken || try > 0 {
			return nil, fmt.Errorf("submit to %s stream: %w", s.o.Name, err)
		}
		s.o.Retried()
	}
}

// orderAfter makes later batches of st start after the given device work. An EventStream waits on
// the device. For other streams orderAfter blocks until the work is done or ctx ends.
func orderAfter(ctx context.Context, st stream.Stream, after []stream.Recorded) error {
	es, ok := st.(stream.EventStream)
	for k, d := range after {
		var err error
		if ok {
			err = d.Precede(ctx, es)
		} else {
			select {
			case <-d.Done():
				err = d.Err()
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		if err != nil {
			return fmt.Errorf("wait for recorded work %d of %d: %w", k+1, len(after), err)
		}
	}
	return nil
}

// SplitDeps divides after into the dependencies that the host must wait for and those that the
// stream can wait for on the device. It opens a stream if there is none and after contains recorded
// work.
func (s *Stream) SplitDeps(ctx context.Context, after []mem.Dependency) (onHost []mem.Dependency, onDevice []stream.Recorded) {
	for k, d := range after {
		rec, ok := d.(stream.Recorded)
		if ok && onDevice == nil {
			st, _ := s.get(ctx) // Submit returns the error if there is a batch to copy
			if _, ok = st.(stream.EventStream); !ok {
				return after, nil
			}
			onHost = slices.Clone(after[:k])
		}
		switch {
		case ok:
			onDevice = append(onDevice, rec)
		case onDevice != nil:
			onHost = append(onHost, d)
		}
	}
	if onDevice == nil {
		return after, nil
	}
	return onHost, onDevice
}

// Open opens a stream if there is none. It blocks while another goroutine opens it.
func (s *Stream) Open(ctx context.Context) error {
	_, err := s.get(ctx)
	return err
}

// get returns the current stream, or opens one.
func (s *Stream) get(ctx context.Context) (stream.Stream, error) {
	st, _ := s.current()
	if st != nil {
		return st, nil
	}
	st, brokenErr, err := s.reopen(ctx)
	if err != nil {
		return nil, fmt.Errorf("open %s stream: %w", s.o.Name, err)
	}
	if brokenErr != nil {
		s.o.Reopened(brokenErr)
	}
	return st, nil
}

// current returns the current stream and the failure of the last broken one. Both may be nil.
func (s *Stream) current() (st stream.Stream, brokenErr error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cur, s.brokenErr
}

// reopen opens a stream, unless another goroutine has already opened one. If it has opened one,
// brokenErr is the failure of the stream that it replaces, or nil.
func (s *Stream) reopen(ctx context.Context) (st stream.Stream, brokenErr, err error) {
	select {
	case s.openLock <- struct{}{}:
		defer func() { <-s.openLock }()
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	if st, brokenErr = s.current(); st != nil {
		return st, nil, nil
	}
	if st, err = s.o.Open(); err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	s.cur = st
	s.mu.Unlock()
	return st, brokenErr, nil
}

// retire removes st, which failed with err, and starts a goroutine that closes it. It does nothing
// if st is not the current stream.
func (s *Stream) retire(st stream.Stream, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cur != st {
		return
	}
	s.cur, s.brokenErr = nil, err
	old := &retiredStream{st: st, done: make(chan struct{})}
	s.retired = append(slices.DeleteFunc(s.retired, (*retiredStream).closed), old)
	go old.closeAndRetry(s.ctx, s.o.Retried)
}

// Close closes the current stream and waits for the retired ones. If err is not nil, a stream is
// still open and the caller may retry. reported is the error of a stream that is closed
// nevertheless.
func (s *Stream) Close(ctx context.Context) (reported, err error) {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.quit)
	}
	s.mu.Unlock()
	select {
	case <-s.watcherDone:
	case <-ctx.Done():
		return nil, fmt.Errorf("close %s stream: its watcher has not ended: %w", s.o.Name, context.Cause(ctx))
	}
	s.mu.Lock()
	cur, retired := s.cur, s.retired
	s.mu.Unlock()
	var errs []error
	if cur != nil {
		reported, err = closeStream(ctx, cur)
		if err != nil {
			errs = append(errs, fmt.Errorf("close %s stream: %w", s.o.Name, err))
		} else {
			s.mu.Lock()
			s.cur = nil
			s.mu.Unlock()
		}
		if reported != nil {
			reported = fmt.Errorf("close %s stream: %w", s.o.Name, reported)
		}
	}
	for _, old := range retired {
		if err := old.wait(ctx, s.cancel); err != nil {
			errs = append(errs, fmt.Errorf("close %s stream that broke: %w", s.o.Name, err))
		}
	}
	if len(errs) == 0 {
		s.cancel()
	}
	return reported, errors.Join(errs...)
}
