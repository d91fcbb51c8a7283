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

// hostStreams holds the adopted streams of the host program.
type hostStreams struct {
	dev    device.StreamAdopter
	pool   *signal.Pool
	shards int             // of a block
	ctx    context.Context // of goroutines that wait for recorded work; close cancels it
	end    context.CancelFunc

	mu     sync.Mutex
	closed bool           // guarded by mu
	calls  sync.WaitGroup // running calls and goroutines
	list   []*HostStream  // guarded by mu
}

// openHostStreams must come before the store. The store closes first, and ends the loads that
// streams wait for.
func (e *Engine) openHostStreams() error {
	if !e.cfg.HostStreams {
		return nil
	}
	pool, err := signal.Open(e.dev, store.DefaultTasks)
	if err != nil {
		return fmt.Errorf("host streams: %w", err)
	}
	h := &hostStreams{pool: pool, shards: e.groups.shards()}
	h.dev, _ = e.dev.(device.StreamAdopter) // else there is no pool
	h.ctx, h.end = context.WithCancel(context.Background())
	e.hosts = h
	e.closers.Add("host streams", h.close)
	return nil
}

// AdoptStream returns the program's stream with this native handle, a CUstream or cudaStream_t.
// Zero is the default stream. It needs Config.HostStreams. The program keeps the stream, and must
// not destroy it while it uses the HostStream. There is nothing to release. Adopt each stream once:
// few streams may wait at the same time (HostStream.WaitLoad).
//
// Errors: ErrNotSupported if the stream is capturing a graph, ErrInvalid if it belongs to another
// device or context or is the default stream of each thread. See device.StreamAdopter.
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

// begin starts a call that uses the device. Each begin that returns nil needs one calls.Done.
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

// close releases all streams, waits until none uses its signal, and closes events. The store is
// closed.
func (h *hostStreams) close(ctx context.Context) error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.end()
	ended := make(chan struct{})
	go func() { h.calls.Wait(); close(ended) }()
	if err := inuse.Wait(ctx, ended); err != nil {
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

// HostStream is a stream of the host program. Its methods enqueue work after the program's earlier
// work, and return. They block only if the driver does because the stream is full. They are safe
// for concurrent use, also while the program uses the stream, but not while it starts to capture a
// graph. A stream that is capturing returns ErrNotSupported. After the engine has closed they
// return ErrClosed.
type HostStream struct {
	hosts *hostStreams
	dev   device.HostStream

	mu       sync.Mutex
	recorded []*recorded // not known to be done, oldest first; guarded by mu
}

// Recorded returns a dependency on the work that the program has enqueued so far. Pass it to
// DumpOptions.After or DumpTask.SubmitShard, and the dump starts after that work, without a wait on
// the host. Several dumps may use it. There is nothing to release.
//
// The dump's stream waits on the device, and later dumps wait as well. store.DumpOptions documents
// the bound. Call Recorded right after enqueueing the work that writes the pages.
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

// WaitLoad makes later work of the stream wait until the load has ended, without a wait on the
// host. The load may also end with errors, by LoadTask.Cancel, or because the engine closes. So the
// program calls LoadTask.Wait before it trusts results of that work. If the load has not ended
// within Config.Store.WaitMax, the stream goes on, and the load too: its pages must not be used
// until it is done, and all of its blocks fail with ErrExpired. Stats.LoadsExpired counts such
// loads.
//
// Errors: ErrInvalid without LoadOptions.Awaited. ErrBusy if the maximum number of streams waits
// (device.StreamAdopter.WaitLimit): the stream does not wait, so wait on the host. After other
// errors the stream may wait nevertheless.
func (s *HostStream) WaitLoad(t *LoadTask) error { return s.wait(t, t.steps) }

// WaitShard is WaitLoad for a shard, which is a layer unless Config.Blocks differs: the stream
// waits until the shard is on the page of every block that will get it, verified.
// LoadTask.WaitShard, which then returns at once, returns the errors of the other blocks. Without
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
	event device.Event // nil once it is closed
	uses  int          // current uses of event
	ended bool
	err   error // failure of the work
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

// Done implements mem.Dependency. The first call starts a goroutine that waits for the event.
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

// poll reports whether the work has ended. It does not block.
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

// use returns the event, which stays open until release, or nil if the work has ended.
func (r *recorded) use() device.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return nil
	}
	r.uses++
	return r.event
}

func (r *recorded) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.uses--
	r.closeUnused()
}

// resolve ends the work. Only the first call has an effect.
func (r *recorded) resolve(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	if r.ended = true; err != nil {
		r.err = fmt.Errorf("recorded work of host stream: %w", err)
	}
	close(r.done)
	r.closeUnused()
}

// closeUnused closes the event when it is no longer needed. The caller holds the mutex.
func (r *recorded) closeUnused() {
	if r.ended && r.uses == 0 && r.event != nil {
		r.event.Close()
		r.event = nil
	}
}
