package kvlane

import (
	"context"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/signal"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/inuse"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
)

// hostStreams are the streams of the host program that an engine keeps order with.
type hostStreams struct {
	dev    device.StreamAdopter
	pool   *signal.Pool
	shards int             // of a block
	ctx    context.Context // of goroutines that wait for recorded work; ended by Close
	end    context.CancelFunc

	mu     sync.Mutex
	closed bool           // guarded by mu
	calls  sync.WaitGroup // calls and goroutines that passed closed
	list   []*HostStream  // guarded by mu
}

// openHostStreams comes before the store, which ends the loads that streams wait for when it closes.
func (e *Engine) openHostStreams() error {
	if !e.cfg.HostStreams {
		return nil
	}
	pool, err := signal.Open(e.dev, store.DefaultTasks)
	if err != nil {
		return fmt.Errorf("host streams: %w", err)
	}
	h := &hostStreams{pool: pool, shards: e.groups.shards()}
	h.dev, _ = e.dev.(device.StreamAdopter) // or there were no pool
	h.ctx, h.end = context.WithCancel(context.Background())
	e.hosts = h
	e.closers.Add("host streams", h.close)
	return nil
}

// AdoptStream returns the program's stream of that native handle, a CUstream or cudaStream_t; zero is the default stream. Config.HostStreams
// has to say so first. The stream stays the program's, which does not destroy it as long as it uses the HostStream; there is
// nothing to give back. Adopt each once: of those that wait at the same time there may be few (HostStream.WaitLoad).
//
// ErrNotSupported if the stream is capturing a graph, ErrInvalid if it belongs to another device or context or is the default
// stream of each thread. See device.StreamAdopter.
func (e *Engine) AdoptStream(handle uintptr) (*HostStream, error) {
	s, err := e.hosts.adopt(handle)
	if err != nil {
		return nil, fmt.Errorf("adopt stream: %w", err)
	}
	return s, nil
}

func (h *hostStreams) adopt(handle uintptr) (*HostStream, error) {
	if err := h.begin(); err != nil {
		return nil, err
	}
	defer h.calls.Done()
	dev, err := h.dev.AdoptStream(handle)
	if err != nil {
		return nil, err
	}
	s := &HostStream{hosts: h, dev: dev}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list = append(h.list, s)
	return s, nil
}

// take returns a signal for a load.
func (h *hostStreams) take(ctx context.Context, steps int) (*signal.Signal, error) {
	if h == nil {
		return nil, errNoHostStreams
	}
	return h.pool.Take(ctx, steps)
}

var errNoHostStreams = fmt.Errorf("the engine was opened without Config.HostStreams: %w", errdefs.ErrInvalid)

// begin admits a call that uses the device. Every begin that returned nil has one calls.Done.
func (h *hostStreams) begin() error {
	if h == nil {
		return errNoHostStreams
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return errdefs.ErrClosed
	}
	h.calls.Add(1)
	return nil
}

// close lets all streams go on, waits until none can look at what it waited for, and gives events back. The store is closed.
func (h *hostStreams) close(ctx context.Context) error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.end()
	over := make(chan struct{})
	go func() { h.calls.Wait(); close(over) }()
	if err := inuse.Wait(ctx, over); err != nil {
		return fmt.Errorf("close host streams: calls are under way: %w", err)
	}
	for _, s := range h.list {
		for _, r := range s.recorded {
			r.resolve(errdefs.ErrClosed)
		}
		s.recorded = nil
	}
	return h.pool.Close(ctx)
}

// HostStream is a stream of the host program. Its methods enqueue behind what the program has enqueued so far, and return; they
// block only where the driver does because the stream is full. They may be called from any thread, also while the
// program uses the stream, but not while it begins to capture a graph: a stream that captures is refused with ErrNotSupported.
// ErrClosed once the engine has closed.
type HostStream struct {
	hosts *hostStreams
	dev   device.HostStream

	mu       sync.Mutex
	recorded []*recorded // those not known to be done, oldest first; guarded by mu
}

// Recorded stands for the work that the program has enqueued so far: put it into DumpOptions.After, or give it to
// DumpTask.SubmitShard, and the dump comes after that work, without anybody waiting on the host. It may serve several dumps, or
// none, and there is nothing to give back.
//
// The dump's stream waits on the device, and whatever is dumped next waits behind it; store.DumpOptions says what bounds that. Record
// when the work is enqueued that writes the pages, not long before.
func (s *HostStream) Recorded() (mem.Dependency, error) {
	r, err := s.record()
	if err != nil {
		return nil, fmt.Errorf("record work of host stream: %w", err)
	}
	return r, nil
}

func (s *HostStream) record() (*recorded, error) {
	if err := s.hosts.begin(); err != nil {
		return nil, err
	}
	defer s.hosts.calls.Done()
	e, err := s.dev.Record()
	if err != nil {
		return nil, err
	}
	r := &recorded{hosts: s.hosts, done: make(chan struct{}), event: e}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for n < len(s.recorded) && s.recorded[n].poll() {
		n++
	}
	s.recorded = append(s.recorded[n:], r)
	return r, nil
}

// WaitLoad makes what the program enqueues from now on wait until the load has ended, without anybody waiting on the host: well,
// badly, by LoadTask.Cancel or as the engine closes. So the program asks how, by LoadTask.Wait, before it trusts what has
// read the pages. A load that has not ended within Config.Store.WaitMax lets streams go on without it, and goes on
// itself: nobody may use its pages until it is done, and all of its blocks fail with ErrExpired. Stats.LoadsExpired counts those.
//
// ErrInvalid for a load that was not started with LoadOptions.Awaited. ErrBusy, before the stream waits, while as many streams wait
// as may (device.StreamAdopter.WaitLimit): then wait on the host. After other errors the stream may wait all the same.
func (s *HostStream) WaitLoad(t *LoadTask) error { return s.wait(t, t.steps) }

// WaitShard is WaitLoad for a shard, which is a layer unless Config.Blocks says otherwise: until it is on the page of every
// block that will get it, verified. LoadTask.WaitShard, which then returns at once, says which blocks have not got it. Without
// LoadOptions.Layerwise it is WaitLoad.
func (s *HostStream) WaitShard(t *LoadTask, shard int) error {
	if shards := s.hosts.shards; shard < 0 || shard >= shards {
		return fmt.Errorf("make host stream wait for shard %d of %d: %w", shard, shards, errdefs.ErrInvalid)
	}
	return s.wait(t, min(shard+1, t.steps))
}

func (s *HostStream) wait(t *LoadTask, step int) error {
	if t.signal == nil {
		return fmt.Errorf("make host stream wait: the load is not LoadOptions.Awaited: %w", errdefs.ErrInvalid)
	}
	return t.signal.Hold(s.dev, step)
}

// recorded is work of a stream up to an event. It implements stream.Recorded.
type recorded struct {
	hosts *hostStreams
	done  chan struct{} // closed by resolve
	watch sync.Once

	mu    sync.Mutex
	event device.Event // nil once it is given back
	uses  int          // of event, at this moment
	over  bool
	err   error // why the work failed, once over
}

var _ stream.Recorded = (*recorded)(nil)

// Precede implements stream.Recorded.
func (r *recorded) Precede(ctx context.Context, s stream.EventStream) error {
	if r.poll() {
		return r.Err()
	}
	e := r.use()
	if e == nil {
		return r.Err()
	}
	defer r.release()
	return s.WaitEvent(ctx, e)
}

// Done implements mem.Dependency. Somebody on the host waits, and so does a goroutine from now on.
func (r *recorded) Done() <-chan struct{} {
	r.watch.Do(func() {
		if r.poll() {
			return
		}
		if err := r.hosts.begin(); err != nil {
			return // close resolves it
		}
		go func() {
			defer r.hosts.calls.Done()
			e := r.use()
			if e == nil {
				return
			}
			err := e.Wait(r.hosts.ctx)
			r.release()
			if r.hosts.ctx.Err() == nil {
				r.resolve(err)
			}
		}()
	})
	return r.done
}

// Err implements mem.Dependency.
func (r *recorded) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// poll reports whether the work is over.
func (r *recorded) poll() bool {
	e := r.use()
	if e == nil {
		return true
	}
	done, err := e.Done()
	r.release()
	if done || err != nil {
		r.resolve(err)
	}
	return done || err != nil
}

// use returns the event, which stays open until release, or nil once the work is over.
func (r *recorded) use() device.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return nil
	}
	r.uses++
	return r.event
}

func (r *recorded) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.uses--
	r.giveBack()
}

// resolve says that the work is over. The first call counts.
func (r *recorded) resolve(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return
	}
	if r.over = true; err != nil {
		r.err = fmt.Errorf("recorded work of host stream: %w", err)
	}
	close(r.done)
	r.giveBack()
}

// giveBack closes the event once nothing needs it. The caller holds the mutex.
func (r *recorded) giveBack() {
	if r.over && r.uses == 0 && r.event != nil {
		r.event.Close()
		r.event = nil
	}
}
