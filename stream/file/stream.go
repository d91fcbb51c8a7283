package file

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// Stream is an unordered stream between files and memory. Safe for concurrent use.
type Stream struct {
	opts    Options
	workers queue // of path posix
	queues  [stream.PathCount]queue
	lossy   []quarantineQueue // of queues
	staging *staging
	warm    warmth
	stats   stats

	slots   chan struct{} // one element for each batch that is accepted and unresolved
	room    chan struct{} // one for each transfer that is begun and unfinished
	down    chan struct{} // closed when no batch is accepted any more
	running sync.WaitGroup
	closer  chan struct{} // token: one Close at a time
	idle    chan struct{} // closed when no batch is left

	mu      sync.Mutex
	lastID  uint64
	closing bool
	absent  map[wayTo]*refusal
	modes   map[uint64]device.StorageMode // by file system
}

var _ stream.Stream = (*Stream)(nil)

// Stats counts what a stream has done.
type Stats struct {
	Batches, Bytes [stream.PathCount]int64 // by the path that completions name; failed ones have none
	Failed         int64
	Refused        int64 // files that were to be moved with O_DIRECT, and whose file system refused
	Unopened       int64 // files that could not be opened with O_DIRECT for another reason: want of descriptors, say
	GivenUp        int64 // paths that were given up, each for a file system
	Unregistered   int64 // staging memory that io_uring could not register: it pins it for each transfer. GivenUp of a completion says why
	Waited         int64 // transfers of cuFile that calls moved, as the library or its compatibility mode has none for the queues there are
	// Quarantined is transfers, now, of which nothing tells whether they are over, as a queue of the device or io_uring broke. Their
	// batches are unresolved, their memory and files in use, until they are found to have ended; a queue of the device shows that to Close.
	Quarantined int
}

type stats struct {
	batches, bytes                                   [stream.PathCount]atomic.Int64
	failed, refused, unopened, givenUp, unregistered atomic.Int64
}

func (s *stats) add(c *stream.Completion, err error) {
	if err != nil {
		s.failed.Add(1)
		return
	}
	s.batches[c.Path].Add(1)
	s.bytes[c.Path].Add(c.Bytes)
}

// Open opens a stream. Errors: ErrInvalid for options, ErrNotSupported for a path or a way that is required and not there.
func Open(o Options) (*Stream, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("open file stream: %w", err)
	}
	o = o.withDefaults()
	s := &Stream{
		opts: o, staging: newStaging(&o), slots: make(chan struct{}, o.Depth), room: make(chan struct{}, o.begun()),
		down: make(chan struct{}), closer: make(chan struct{}, 1), idle: make(chan struct{}),
		absent: make(map[wayTo]*refusal), modes: make(map[uint64]device.StorageMode),
	}
	s.workers = newWorkers(stream.PathPosix, &o, &s.warm, posix)
	s.queues[stream.PathPosix] = s.workers
	if err := errors.Join(s.openURing(), s.openCuFile()); err != nil {
		return nil, errors.Join(fmt.Errorf("open file stream: %w", err), s.free(context.Background()))
	}
	for _, q := range s.queues {
		if q, ok := q.(bufferQueue); ok {
			s.staging.told = append(s.staging.told, q)
		}
		if q, ok := q.(quarantineQueue); ok {
			s.lossy = append(s.lossy, q)
		}
	}
	return s, nil
}

// openURing opens the queue of path uring. Where there is none, that is an error only of a stream that must have it.
func (s *Stream) openURing() error {
	if s.opts.Path != stream.PathNone && s.opts.Path != stream.PathURing {
		return nil
	}
	q, err := openURing(s.opts.Transfers)
	if err == nil {
		s.queues[stream.PathURing] = q
	} else if s.opts.Path == stream.PathNone {
		err = nil
	}
	return err
}

func (s *Stream) openCuFile() error {
	must := s.needsCuFile()
	switch storage := s.opts.CuFile.Storage; {
	case s.opts.Direct == DirectNever && must:
		return fmt.Errorf("path cufile is forced, and direct is never: %w", errdefs.ErrInvalid)
	case storage == nil && must:
		return fmt.Errorf("direct is required, and there is no cuFile: %w", errdefs.ErrNotSupported)
	case storage == nil || s.opts.Direct == DirectNever || s.opts.Device == nil:
		return nil
	}
	var err error
	s.queues[stream.PathCuFile], err = openCuFile(&s.opts)
	return err
}

// Submit implements stream.Stream.
func (s *Stream) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	t, err := s.submit(ctx, b)
	if err != nil {
		return nil, fmt.Errorf("submit batch: %w", err)
	}
	return t, nil
}

func (s *Stream) submit(ctx context.Context, mb *mem.Batch) (*stream.Ticket, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	b, err := s.prepare(mb)
	if err != nil {
		return nil, err
	}
	select {
	case s.slots <- struct{}{}:
	default:
		select {
		case s.slots <- struct{}{}:
		case <-s.down:
			return nil, fmt.Errorf("file stream: %w", errdefs.ErrClosed)
		case <-ctx.Done():
			return nil, fmt.Errorf("all %d places are taken: %w", cap(s.slots), context.Cause(ctx))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err = b.holdFiles()
	if s.closing {
		b.dropFiles()
		err = fmt.Errorf("file stream: %w", errdefs.ErrClosed)
	}
	if err != nil {
		<-s.slots
		return nil, err
	}
	s.lastID++
	b.ctx, b.cancel = context.WithCancelCause(context.Background())
	b.ticket = stream.NewTicket(s.lastID, func() { b.cancel(errStopped) })
	s.running.Add(1)
	go b.run()
	return b.ticket, nil
}

// prepare checks mb.
func (s *Stream) prepare(mb *mem.Batch) (*batch, error) {
	if mb == nil {
		return nil, fmt.Errorf("there is no batch: %w", errdefs.ErrInvalid)
	}
	if err := mb.Validate(); err != nil {
		return nil, err
	}
	for i, d := range mb.After {
		if d == nil {
			return nil, fmt.Errorf("dependency %d is nil: %w", i, errdefs.ErrInvalid)
		}
	}
	pieces, err := s.survey(mb)
	if err != nil {
		return nil, err
	}
	return &batch{
		stream: s, b: mb, bytes: mb.Bytes(), pieces: mb.Pieces(), cut: cutter{pieces: pieces, most: s.opts.ChunkBytes},
		wake: make(chan struct{}, 1),
	}, nil
}

// refuse notes that f's file system refuses O_DIRECT.
func (s *Stream) refuse(f *File) {
	f.refused.Store(true)
	if !f.counted.Swap(true) {
		s.stats.refused.Add(1)
	}
}

// Stats returns what the stream has done so far.
func (s *Stream) Stats() Stats {
	var r Stats
	for p := range r.Batches {
		r.Batches[p], r.Bytes[p] = s.stats.batches[p].Load(), s.stats.bytes[p].Load()
	}
	r.Failed, r.GivenUp = s.stats.failed.Load(), s.stats.givenUp.Load()
	r.Unregistered = s.stats.unregistered.Load()
	r.Refused, r.Unopened = s.stats.refused.Load(), s.stats.unopened.Load()
	for _, q := range s.lossy {
		r.Quarantined += q.quarantined()
		if q, ok := q.(*cuFileQueues); ok {
			r.Waited = q.waited.Load()
		}
	}
	return r
}

// Close implements stream.Stream. It is what ends transfers in quarantine, if their queue is idle before ctx ends.
func (s *Stream) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closing {
		s.closing = true
		close(s.down)
		go func() { s.running.Wait(); close(s.idle) }()
	}
	s.mu.Unlock()
	select {
	case s.closer <- struct{}{}:
		defer func() { <-s.closer }()
	case <-ctx.Done():
		return s.unclosed(ctx)
	}
	for _, q := range s.lossy {
		q.release(ctx)
	}
	select {
	case <-s.idle:
	case <-ctx.Done():
		return s.unclosed(ctx)
	}
	if err := s.free(ctx); err != nil {
		return fmt.Errorf("close file stream: %w", err)
	}
	return nil
}

func (s *Stream) unclosed(ctx context.Context) error {
	return fmt.Errorf("close file stream: %d batches are unresolved: %w: %w", len(s.slots), errdefs.ErrBusy, context.Cause(ctx))
}

// free gives back what the stream holds: no batch is left. After an error it is called again, for what is left.
func (s *Stream) free(ctx context.Context) error {
	var errs []error
	for p, q := range s.queues {
		if q == nil {
			continue
		}
		if err := q.close(ctx); err != nil {
			errs = append(errs, err)
			continue
		}
		s.queues[p] = nil
	}
	if len(errs) == 0 { // a queue may know the staging memory
		errs = append(errs, s.staging.close())
	}
	return errors.Join(errs...)
}
