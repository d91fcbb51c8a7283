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
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/stream/ordered"
)

// Defaults and limits of Options.
const (
	DefaultQueueDepth  = 1024
	DefaultDescriptors = 256 << 10
	MinDescriptors     = 256
	DefaultCTAs        = 16

	DefaultStagingBytes = 4 * 8 << 20
	// BackgroundStagingBytes are four chunks of which each keeps the bus busy for longer than it takes to get multiprocessors
	// beside a large matrix product.
	BackgroundStagingBytes = 4 * plan.DefaultMinChunkBytes
	MinStagingBytes        = 4096

	MaxQueueDepth   = 1 << 20
	MaxDescriptors  = 1 << 24
	MaxCTAs         = 1 << 16
	MaxStagingBytes = 1 << 40
)

// Options says how a stream is opened. The zero value is the default.
type Options struct {
	// Path forces every batch onto one path; PathNone has the planner choose.
	Path stream.Path
	// Planner chooses. Nil: one that predicts from plan.Default, figures of another machine maybe.
	Planner Planner
	// Policy says what to choose for. With a Planner of one's own, anything but the zero value needs one that has
	// With(plan.Policy) (*plan.Planner, error).
	Policy plan.Policy
	// QueueDepth is how many batches may be accepted and unresolved. Zero: DefaultQueueDepth.
	QueueDepth int
	// Descriptors is the size of the ring of kernel descriptors in pinned memory, in pieces of device.CopyDescBytes;
	// at least MinDescriptors. A longer batch is issued in parts. Zero: DefaultDescriptors.
	Descriptors int
	// CTAs is how many thread blocks a copy kernel may have where the planner does not say. Zero: what suits the path,
	// DefaultCTAs for plain kernels.
	CTAs int
	// StagingBytes is how much device memory staged batches are gathered in, in four chunks. It is allocated when one is
	// first planned, or at once if the path is forced. Zero: DefaultStagingBytes, and under the background policy
	// BackgroundStagingBytes; negative: no staging.
	StagingBytes int64
	// Resident says how kernels behave that stay on the device.
	Resident ResidentOptions
	// NIC adds the path of its name, for batches between host and device memory that the NIC reaches. Nil: there is none.
	NIC *Carrier
	// Prepare has Open get what all paths need, the NIC's too, in place of waiting until each is first chosen. From then on
	// nothing is allocated, registered, freed or opened until Close, as streams of the host program want that wait for
	// batches (device.StreamAdopter): drivers may hold that up until they have waited, for ever. Open fails where a path that
	// the device has cannot get what it needs. HighPriority is implied. Streams that have work
	// at the same time, and be it to wait, get a queue of the hardware each as long as there are some, and share after that:
	// what shares with one that waits, waits. So the stream has a resident worker, if it is not told how many, and takes
	// no more by it than one is good for: it is at work on two such queues at most.
	Prepare bool
	// HighPriority asks the device for queues of its highest priority. The background policy always does: its kernels are
	// few and short, and should not wait for what computes beside them longer than they must.
	HighPriority bool
	// Clock is where the stream has the time from. Nil: the system's.
	Clock clockwork.Clock
}

// Validate reports every field that is out of range.
func (o Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	if o.QueueDepth < 0 || o.QueueDepth > MaxQueueDepth {
		bad("queue depth %d is not 0 to %d", o.QueueDepth, MaxQueueDepth)
	}
	if o.Descriptors != 0 && (o.Descriptors < MinDescriptors || o.Descriptors > MaxDescriptors) {
		bad("%d descriptors are not %d to %d", o.Descriptors, MinDescriptors, MaxDescriptors)
	}
	if o.CTAs < 0 || o.CTAs > MaxCTAs {
		bad("CTAs %d is not 0 to %d", o.CTAs, MaxCTAs)
	}
	if o.StagingBytes > 0 && (o.StagingBytes < MinStagingBytes || o.StagingBytes > MaxStagingBytes) {
		bad("%d bytes of staging are not %d to %d", o.StagingBytes, MinStagingBytes, int64(MaxStagingBytes))
	}
	o.Resident.validate(bad)
	if o.NIC != nil {
		o.NIC.validate(bad)
	}
	if err := o.Policy.Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (o Options) withDefaults() Options {
	if o.QueueDepth == 0 {
		o.QueueDepth = DefaultQueueDepth
	}
	if o.Clock == nil {
		o.Clock = clockwork.NewRealClock()
	}
	if o.Descriptors == 0 {
		o.Descriptors = DefaultDescriptors
	}
	background := o.Policy.Goal == plan.Background
	o.HighPriority = o.HighPriority || background || o.Prepare
	switch {
	case o.StagingBytes != 0:
	case background:
		o.StagingBytes = BackgroundStagingBytes
	default:
		o.StagingBytes = DefaultStagingBytes
	}
	return o
}

// Stream is an ordered stream on one queue of a device. It implements stream.EventStream. Safe for concurrent use.
type Stream struct {
	dev   device.Device
	index int // of dev
	opts  Options
	life  *ordered.Stream

	// movers are the paths by stream.Path. able is the set of those that the device has and that are not absent, prepared of
	// those that have what they need (plan.Paths both); preparing is a token: one at a time gets it.
	movers         [stream.PathCount]mover
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
	// turn is of whoever completes, one goroutine at a time, while the completer waits for the device too.
	turn sync.Mutex
	// awake: the completer has the turn, or is about to take it.
	awake atomic.Bool
	// later wakes the completer for a batch that was left to Ticket.Wait; armed: it will.
	later clockwork.Timer
	armed atomic.Bool
	// pacing has the issuer look again when the head of the backlog may go on.
	pacing clockwork.Timer

	// queue and the movers are used by whoever issues. latest is the path that issued last, waited that queue was
	// told to wait for somebody else's event since.
	queue    device.Queue
	latest   stream.Path
	waited   bool
	stepping item // what step works on

	mu       sync.Mutex
	inflight fifo // what was issued, in order, and is not completed
	apart    int  // items in flight between which and the queue the device keeps no order: all of path apartBy
	apartBy  stream.Path
	calls    int // device calls whose event is not done
	ring     *ring
	staging  *positions // nil before the staged path is prepared
	pacer    plan.Pacer
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
	if err := s.prepare(); err != nil {
		return nil, errors.Join(fmt.Errorf("open copy stream: %w", err), s.undo())
	}
	s.life.Start(s.completeLoop)
	return s, nil
}

// events is how many events the queues of a stream make ahead: they share them.
func (o *Options) events() int {
	if !o.Prepare {
		return 0
	}
	return maxCalls + 2*MaxResidentWorkers
}

// prepare finds the planner and the paths, and allocates what most batches need.
func (s *Stream) prepare() error {
	var err error
	if s.planner, err = s.opts.planner(); err != nil {
		return err
	}
	return s.findPaths()
}

// undoTimeout bounds the closing of queues that are idle: there is nothing to wait for.
const undoTimeout = 10 * time.Second

// undo gives back what a stream has got that could not be opened. As nobody could try again later, it does that itself.
func (s *Stream) undo() error {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	s.life.Start()
	err := s.life.Close(ctx)
	if err != nil {
		err = errors.Join(err, s.life.Close(ctx))
	}
	return err
}

// planner returns the planner under the policy.
func (o *Options) planner() (Planner, error) {
	if o.Planner == nil {
		return plan.New(plan.Default(), plan.Options{Policy: o.Policy})
	}
	if o.Policy == (plan.Policy{}) {
		return o.Planner, nil
	}
	p, ok := o.Planner.(interface {
		With(policy plan.Policy) (*plan.Planner, error)
	})
	if !ok {
		return nil, fmt.Errorf("planner %T takes no policy: %w", o.Planner, errdefs.ErrInvalid)
	}
	return p.With(o.Policy)
}

// ringBytes is the size of the ring of descriptors.
func (s *Stream) ringBytes() int64 {
	return int64(align(uint64(s.opts.Descriptors)*device.CopyDescBytes, 4*tableAlign))
}

// makeRing allocates the ring of descriptors, if that was not done. The caller has the token preparing, or opens the stream.
func (s *Stream) makeRing() error {
	s.mu.Lock()
	made := s.ring != nil
	s.mu.Unlock()
	if made {
		return nil
	}
	r, err := newRing(s.dev, s.ringBytes())
	if err != nil {
		return fmt.Errorf("allocate %d descriptors: %w", s.opts.Descriptors, err)
	}
	s.mu.Lock()
	s.ring = r
	s.mu.Unlock()
	return nil
}

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

// stop closes the queues. Some path may still be getting memory or queues: once that is over no other begins, as the stream
// is down.
func (s *Stream) stop(ctx context.Context) error {
	select {
	case s.preparing <- struct{}{}:
		defer func() { <-s.preparing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.later.Stop()
	s.pacing.Stop()
	return s.closeQueues(ctx)
}

// free gives the memory back, once all queues are idle: all that the driver takes. What is done is forgotten, so that a Close
// that failed half-way goes on where it stopped.
func (s *Stream) free() error {
	var errs []error
	for o := range s.owners {
		errs = append(errs, o.free())
	}
	if s.ring != nil {
		if err := s.dev.Free(s.ring.region); err != nil {
			errs = append(errs, fmt.Errorf("free descriptors: %w", err))
		} else {
			s.ring = nil
		}
	}
	return errors.Join(errs...)
}

// closeQueues closes the stream's queue and those of the movers, and keeps what they said.
func (s *Stream) closeQueues(ctx context.Context) error {
	if s.queue != nil {
		failed, err := closeQueue(ctx, s.queue)
		if err != nil {
			return err
		}
		s.queue = nil
		s.life.Keep(failed)
	}
	for o := range s.owners {
		failed, err := o.quiesce(ctx)
		s.life.Keep(failed)
		if err != nil {
			return err
		}
	}
	return nil
}

// closer is a queue, or another stream.
type closer interface {
	Close(ctx context.Context) error
}

// closeQueue closes q. What failed may say so when it is closed, and be closed all the same: only the second answer tells.
// The first is failed then.
func closeQueue(ctx context.Context, q closer) (failed, err error) {
	if failed = q.Close(ctx); failed == nil {
		return nil, nil
	}
	if ctx.Err() != nil || q.Close(ctx) != nil {
		return nil, failed
	}
	return failed, nil
}
