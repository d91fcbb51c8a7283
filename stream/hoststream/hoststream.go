// Package hoststream orders loads and dumps with the streams of the host program, on the device. A
// dump starts after work that such a stream has enqueued (Recorded). A stream waits for a load, or
// for single shards of it (WaitLoad, WaitShard).
//
// A Set holds the adopted streams of an engine. All methods are safe for concurrent use.
package hoststream

import (
	"context"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/signal"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/inuse"
	"github.com/kvlane/kvlane/mem"
)

// Set holds the adopted streams of a device. On a nil Set, Adopt and NewLoad return ErrInvalid.
type Set struct {
	dev    device.StreamAdopter
	pool   *signal.Pool
	shards int             // number of shards of a block
	ctx    context.Context // for goroutines that wait for recorded work; canceled by Close
	end    context.CancelFunc

	mu     sync.Mutex
	closed bool           // guarded by mu
	calls  sync.WaitGroup // running calls and goroutines
	list   []*Stream      // guarded by mu
}

// Open returns a Set without streams, for at most loads concurrent loads of blocks with this number
// of shards. It pins memory. The caller closes the Set after all loads have ended and before dev.
// It returns ErrNotSupported if dev cannot adopt streams.
func Open(dev device.Device, loads, shards int) (*Set, error) {
	pool, err := signal.Open(dev, loads)
	if err != nil {
		return nil, fmt.Errorf("host streams: %w", err)
	}
	s := &Set{pool: pool, shards: shards}
	s.dev, _ = dev.(device.StreamAdopter) // signal.Open has checked the type
	s.ctx, s.end = context.WithCancel(context.Background())
	return s, nil
}

// Adopt returns the stream with a native handle. See device.StreamAdopter for the errors.
func (s *Set) Adopt(handle uintptr) (*Stream, error) {
	st, err := s.adopt(handle)
	if err != nil {
		return nil, fmt.Errorf("adopt stream: %w", err)
	}
	return st, nil
}

func (s *Set) adopt(handle uintptr) (*Stream, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.calls.Done()
	dev, err := s.dev.AdoptStream(handle)
	if err != nil {
		return nil, err
	}
	st := &Stream{set: s, dev: dev}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, st)
	return st, nil
}

var errNoSet = fmt.Errorf("the engine was opened without Config.HostStreams: %w", errdefs.ErrInvalid)

// begin starts a call that uses the device. Each begin that returns nil needs one calls.Done.
func (s *Set) begin() error {
	if s == nil {
		return errNoSet
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errdefs.ErrClosed
	}
	s.calls.Add(1)
	return nil
}

// Close releases all streams, waits until none uses its signal, and closes events. All loads must
// have ended. If ctx ends first, it returns the cause, and may be called again.
func (s *Set) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	ended := make(chan struct{})
	go func() { s.calls.Wait(); close(ended) }()
	if err := inuse.Wait(ctx, ended); err != nil {
		return fmt.Errorf("close host streams: calls are under way: %w", err)
	}
	for _, st := range s.list {
		for _, r := range st.recorded {
			r.resolve(errdefs.ErrClosed)
		}
		st.recorded = nil
	}
	return s.pool.Close(ctx)
}

// Load is a load that streams may wait for. Streams cannot wait for the zero value. A type that
// embeds a Load implements Task.
type Load struct {
	signal *signal.Signal // nil in the zero value
	steps  int            // number of steps of signal: the number of shards, or one
}

// Task is a task with a Load.
type Task interface{ hostLoad() *Load }

func (l *Load) hostLoad() *Load { return l }

// NewLoad returns a Load and the signal of its progress. The caller must call Set of the signal. A
// layerwise load has a step for each shard, any other load has one. While the maximum number of
// loads is in use, NewLoad waits until ctx ends.
func (s *Set) NewLoad(ctx context.Context, layerwise bool) (Load, *signal.Signal, error) {
	if s == nil {
		return Load{}, nil, errNoSet
	}
	l := Load{steps: 1}
	if layerwise {
		l.steps = s.shards
	}
	var err error
	if l.signal, err = s.pool.Take(ctx, l.steps); err != nil {
		return Load{}, nil, err
	}
	return l, l.signal, nil
}

// Stream is a stream of the host program. Its methods enqueue work after the program's earlier
// work, and return. They block only if the stream is full and the driver blocks. They are safe for
// concurrent use, also while the program uses the stream, but not while it starts to capture a
// graph. On a stream that is capturing they return ErrNotSupported. After the engine has closed
// they return ErrClosed.
type Stream struct {
	set *Set
	dev device.HostStream

	mu       sync.Mutex
	recorded []*recorded // work that is not known to be done, oldest first; guarded by mu
}

// Recorded returns a dependency on the work that the program has enqueued so far. A dump that
// receives it in DumpOptions.After or DumpTask.SubmitShard starts after that work, without a wait
// on the host. Several dumps may use it. It needs no release.
//
// The dump's stream waits on the device, and later dumps wait as well. store.DumpOptions documents
// the bound. Call Recorded directly after enqueueing the work that writes the pages.
func (s *Stream) Recorded() (mem.Dependency, error) {
	r, err := s.record()
	if err != nil {
		return nil, fmt.Errorf("record work of host stream: %w", err)
	}
	return r, nil
}

func (s *Stream) record() (*recorded, error) {
	if err := s.set.begin(); err != nil {
		return nil, err
	}
	defer s.set.calls.Done()
	e, err := s.dev.Record()
	if err != nil {
		return nil, err
	}
	r := &recorded{set: s.set, done: make(chan struct{}), event: e}
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
// host. The load may also end with errors, by LoadTask.Cancel, or because the engine closes.
// Therefore the program must call LoadTask.Wait before it uses results of that work. If the load
// has not ended within Config.Store.WaitMax, the stream continues, and so does the load: its pages
// must not be used until it is done, and all of its blocks fail with ErrExpired. Stats.LoadsExpired
// counts such loads.
//
// Errors: ErrInvalid without LoadOptions.Awaited. ErrBusy if the maximum number of streams is
// waiting (device.StreamAdopter.WaitLimit); the stream then does not wait, so wait on the host.
// After other errors the stream may wait nevertheless.
func (s *Stream) WaitLoad(t Task) error { return s.wait(t, t.hostLoad().steps) }

// WaitShard is WaitLoad for one shard, which is a layer unless Config.Blocks defines otherwise. The
// stream waits until every block has the shard verified on its page, or has failed. Call
// LoadTask.WaitShard, which then returns at once, for the errors of failed blocks. Without
// LoadOptions.Layerwise it is WaitLoad.
func (s *Stream) WaitShard(t Task, shard int) error {
	if shards := s.set.shards; shard < 0 || shard >= shards {
		return fmt.Errorf("make host stream wait for shard %d of %d: %w", shard, shards, errdefs.ErrInvalid)
	}
	return s.wait(t, min(shard+1, t.hostLoad().steps))
}

func (s *Stream) wait(t Task, step int) error {
	l := t.hostLoad()
	if l.signal == nil {
		return fmt.Errorf("make host stream wait: LoadOptions.Awaited is not set: %w", errdefs.ErrInvalid)
	}
	return l.signal.Block(s.dev, step)
}
