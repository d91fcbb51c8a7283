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

// Stream is an unordered stream between files and memory. It is safe for concurrent use.
type Stream struct {
	opts    Options
	workers queue // of path posix
	queues  [stream.PathCount]queue
	lossy   []quarantineQueue // those of queues that may quarantine transfers
	staging *staging
	warm    warmth
	stats   stats

	slots   chan struct{} // one element for each unresolved batch
	space   chan struct{} // one element for each unfinished transfer or sweep
	down    chan struct{} // closed when no further batch is accepted
	running sync.WaitGroup
	closer  chan struct{} // holds a token during Close
	idle    chan struct{} // closed when there are no unresolved batches

	mu      sync.Mutex
	lastID  uint64
	closing bool
	absent  map[wayTo]*refusal
	modes   map[uint64]device.StorageMode // by file system
}

var _ stream.Stream = (*Stream)(nil)

// Stats counts the operations of a stream.
type Stats struct {
	// Batches and Bytes are indexed by the path in completions. Failed batches are not counted.
	Batches, Bytes [stream.PathCount]int64
	Failed         int64
	// Refused counts files that should be moved with O_DIRECT but whose file system refuses it.
	Refused int64
	// Unopened counts files that could not be opened with O_DIRECT for another reason, such as a
	// lack of descriptors.
	Unopened int64
	// GivenUp counts paths that the stream stopped using, once per file system.
	GivenUp int64
	// Unregistered counts staging memory that io_uring could not register, so that the kernel pins
	// it for each transfer. The GivenUp field of a completion has the reason.
	Unregistered int64
	// Waited counts cuFile transfers that were made by blocking calls, because the library, or its
	// compatibility mode, cannot enqueue them.
	Waited int64
	// Quarantined is the current number of transfers whose end is unknown, because a device queue
	// or the io_uring broke. Their batches stay unresolved, and their memory and files in use,
	// until the transfers are found to have ended. For a device queue, Close checks that.
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

// Open opens a stream. It returns ErrInvalid for invalid options, and ErrNotSupported if a required
// path is not available.
func Open(o Options) (*Stream, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("open file stream: %w", err)
	}
	o = o.withDefaults()
	s := &Stream{
		opts: o, staging: newStaging(&o), slots: make(chan struct{}, o.Depth), space: make(chan struct{}, o.begun()),
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
			s.staging.queues = append(s.staging.queues, q)
		}
		if q, ok := q.(quarantineQueue); ok {
			s.lossy = append(s.lossy, q)
		}
	}
	return s, nil
}

// openURing opens the queue of path uring. If io_uring is not available, that is an error only for
// a stream that requires it.
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
		return fmt.Errorf("path cufile is forced, but direct is off: %w", errdefs.ErrInvalid)
	case storage == nil && must:
		return fmt.Errorf("direct is required, but cuFile is not available: %w", errdefs.ErrNotSupported)
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
			return nil, fmt.Errorf("all %d slots are in use: %w: %w", cap(s.slots), errdefs.ErrBusy, context.Cause(ctx))
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

// prepare validates mb and returns its batch.
func (s *Stream) prepare(mb *mem.Batch) (*batch, error) {
	if mb == nil {
		return nil, fmt.Errorf("the batch is nil: %w", errdefs.ErrInvalid)
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

// refuse records that f's file system refuses O_DIRECT.
func (s *Stream) refuse(f *File) {
	f.refused.Store(true)
	if !f.counted.Swap(true) {
		s.stats.refused.Add(1)
	}
}

// Stats returns the counters of the stream.
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

// Close implements stream.Stream. It also finishes quarantined transfers whose queue becomes idle
// before ctx ends.
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

// free releases the stream's resources. There must be no unresolved batches. After an error it is
// called again for the remaining resources.
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
	if len(errs) == 0 { // an open queue may still use the staging memory
		errs = append(errs, s.staging.close())
	}
	return errors.Join(errs...)
}
