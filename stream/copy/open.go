package copy

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
)

// Defaults and limits of Options.
const (
	DefaultQueueDepth  = 1024
	DefaultDescriptors = 64 << 10
	MinDescriptors     = 256
	DefaultCTAs        = 16
)

// Options says how a stream is opened. The zero value is the default.
type Options struct {
	// Path forces every batch onto one path; PathNone chooses by the size rule.
	Path stream.Path
	// QueueDepth is how many batches may be accepted and unresolved. Zero: DefaultQueueDepth.
	QueueDepth int
	// Descriptors is the size of the ring of kernel descriptors in pinned memory, in pieces of device.CopyDescBytes;
	// at least MinDescriptors. A longer batch is issued in parts. Zero: DefaultDescriptors.
	Descriptors int
	// CTAs is how many thread blocks a copy kernel may have. Zero: DefaultCTAs.
	CTAs int
	// HighPriority asks the device for a queue of its highest priority.
	HighPriority bool
}

// Validate reports every field that is out of range.
func (o Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	if o.QueueDepth < 0 {
		bad("queue depth %d is negative", o.QueueDepth)
	}
	if o.Descriptors != 0 && o.Descriptors < MinDescriptors {
		bad("%d descriptors are fewer than %d", o.Descriptors, MinDescriptors)
	}
	if o.CTAs < 0 {
		bad("CTAs %d is negative", o.CTAs)
	}
	return errors.Join(errs...)
}

func (o Options) withDefaults() Options {
	if o.QueueDepth == 0 {
		o.QueueDepth = DefaultQueueDepth
	}
	if o.Descriptors == 0 {
		o.Descriptors = DefaultDescriptors
	}
	if o.CTAs == 0 {
		o.CTAs = DefaultCTAs
	}
	return o
}

// Stream is an ordered stream on one queue of a device. It implements stream.EventStream. Safe for concurrent use.
type Stream struct {
	dev   device.Device
	index int // of dev
	opts  Options
	paths paths

	// slots has one element for each batch or control that is accepted and unresolved.
	slots chan struct{}
	// down is closed when the stream takes no more batches: broken or closing.
	down chan struct{}
	// wake tells the issuer to look again. One token is enough: it looks at everything.
	wake chan struct{}
	// inflight carries what was issued, in order, to the completer. Its capacity covers all that slots and maxCalls
	// admit, so that sending never blocks.
	inflight chan item
	// stopped is closed when issuer and completer have returned.
	stopped chan struct{}
	closer  chan struct{} // token: one Close at a time

	// queue and what describe.go needs to fill are used by whoever has set issuing.
	queue   device.Queue
	scratch scratch

	mu          sync.Mutex
	issuing     bool // somebody is using queue
	head, tail  *op  // the backlog
	lastID      uint64
	calls       int // device calls whose event is not done
	ring        *ring
	closing     bool
	cause       error // why the stream is broken, or nil
	causeID     uint64
	quarantined []*op // in order; resolved by Close only
}

var _ stream.EventStream = (*Stream)(nil)

// Open opens a stream on a queue of its own. A forced path that the device lacks is ErrNotSupported. The stream does not
// own dev, which must outlive it.
func Open(dev device.Device, o Options) (*Stream, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("open copy stream: %w", err)
	}
	o = o.withDefaults()
	q, err := dev.OpenQueue(device.QueueOptions{HighPriority: o.HighPriority})
	if err != nil {
		return nil, fmt.Errorf("open copy stream: open queue: %w", err)
	}
	s := &Stream{
		dev:      dev,
		index:    dev.Info().Index,
		opts:     o,
		slots:    make(chan struct{}, o.QueueDepth),
		down:     make(chan struct{}),
		wake:     make(chan struct{}, 1),
		inflight: make(chan item, o.QueueDepth+maxCalls),
		stopped:  make(chan struct{}),
		closer:   make(chan struct{}, 1),
		queue:    q,
	}
	if err := s.prepare(); err != nil {
		// The queue is idle: closing it has nothing to wait for.
		return nil, errors.Join(fmt.Errorf("open copy stream: %w", err), q.Close(context.Background()))
	}
	var done sync.WaitGroup
	done.Add(2)
	go func() { defer done.Done(); s.issueLoop() }()
	go func() { defer done.Done(); s.completeLoop() }()
	go func() { done.Wait(); close(s.stopped) }()
	return s, nil
}

// prepare finds the paths and allocates what they need.
func (s *Stream) prepare() error {
	p, err := findPaths(s.dev, s.queue, s.opts.Path)
	if err != nil {
		return err
	}
	s.paths = p
	if p.launcher != nil {
		r, err := newRing(s.dev, int64(s.opts.Descriptors)*device.CopyDescBytes)
		if err != nil {
			return fmt.Errorf("allocate %d descriptors: %w", s.opts.Descriptors, err)
		}
		s.ring = r
	}
	if p.batcher != nil {
		s.scratch.init(batchStep)
	}
	return nil
}

// Err returns why the stream is broken, or nil.
func (s *Stream) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// Quarantined returns how many tickets are unresolved because the device failed in a way that does not tell when it
// stops touching their memory. They resolve when Close has seen the queue idle.
func (s *Stream) Quarantined() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.quarantined)
}

// Close implements stream.Stream. An error that is not the context's comes from the device; calling again tries again.
func (s *Stream) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closing {
		s.closing = true
		if s.cause == nil {
			close(s.down)
		}
	}
	s.mu.Unlock()
	s.poke()

	select {
	case s.closer <- struct{}{}:
		defer func() { <-s.closer }()
	case <-ctx.Done():
		return s.unclosed(context.Cause(ctx))
	}
	select {
	case <-s.stopped:
	case <-ctx.Done():
		return s.unclosed(context.Cause(ctx))
	}
	return s.release(ctx)
}

// release gives back queue and ring, in this order, once nobody uses them. What is done is forgotten, so that a Close that
// failed half-way goes on where it stopped.
func (s *Stream) release(ctx context.Context) error {
	var failed error
	if s.queue != nil {
		// A queue that failed may say so when it is closed, and be closed all the same: only the second answer tells.
		if failed = s.queue.Close(ctx); failed != nil {
			if ctx.Err() != nil || s.queue.Close(ctx) != nil {
				return s.unclosed(failed)
			}
		}
		s.queue = nil
	}
	s.mu.Lock()
	held := s.quarantined
	s.quarantined = nil
	s.mu.Unlock()
	for _, o := range held {
		s.resolve(o)
	}
	if s.ring != nil {
		if err := s.dev.Free(s.ring.region); err != nil {
			return fmt.Errorf("close copy stream: free descriptors: %w", errors.Join(err, failed))
		}
		s.ring = nil
	}
	if failed != nil {
		return fmt.Errorf("close copy stream: %w", failed)
	}
	return nil
}

func (s *Stream) unclosed(cause error) error {
	n := s.Quarantined()
	if n > 0 {
		return fmt.Errorf("close copy stream: %d batches are quarantined, %d unresolved: %w", n, len(s.slots), cause)
	}
	return fmt.Errorf("close copy stream: %d batches are unresolved: %w", len(s.slots), cause)
}
