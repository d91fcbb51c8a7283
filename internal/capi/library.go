package capi

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// maxMillis is the maximum time in milliseconds that fits into a time.Duration.
const maxMillis = math.MaxInt64 / int64(time.Millisecond)

// Library maps handles to engines and their objects. Create it with New.
type Library struct {
	handles    handles
	allocators allocators
	past       context.Context // context that has ended with errPending
	busy       context.Context // context that has ended with errNotNow
	refs       sync.Pool       // pool of *[]kvlane.Ref; the store copies the slices
}

// errNotNow is the cause with which calls fail that would have to wait for a free task.
var errNotNow = fmt.Errorf("too many loads, dumps and prefetches in progress: wait for one: %w", errdefs.ErrBusy)

// New returns a library without engines.
func New() *Library {
	ended := func(cause error) context.Context {
		ctx, end := context.WithCancelCause(context.Background())
		end(cause)
		return ctx
	}
	return &Library{past: ended(errPending), busy: ended(errNotNow)}
}

// within returns a context with a timeout in milliseconds. If ms is zero, the context has already
// ended. If ms is negative, it never ends.
func (l *Library) within(ms int64) (context.Context, context.CancelFunc) {
	switch {
	case ms == 0:
		return l.past, func() {}
	case ms < 0 || ms > maxMillis:
		return context.Background(), func() {}
	}
	return context.WithTimeoutCause(context.Background(), time.Duration(ms)*time.Millisecond, errPending)
}

// looking is like within, but without a timeout if ms is zero. It is for calls that only wait for
// replies of tiers.
func (l *Library) looking(ms int64) (context.Context, context.CancelFunc) {
	if ms == 0 {
		ms = -1
	}
	return l.within(ms)
}

// engine is an engine with the adopted streams of the program.
type engine struct {
	*kvlane.Engine

	mu      sync.Mutex
	streams map[uint64]*kvlane.HostStream // guarded by mu
	watcher *kvlane.EventWatcher          // guarded by mu; nil before the first call of Events
}

func (*engine) kind() kind   { return engineKind }
func (e *engine) of() object { return e }
func (*cache) kind() kind    { return cacheKind }
func (c *cache) of() object  { return c.engine }

// cache is a registered paged KV cache.
type cache struct {
	*kvlane.Cache
	engine *engine
}

// stream returns the adopted stream with a native handle.
func (e *engine) stream(handle uint64) (*kvlane.HostStream, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.streams[handle]; s != nil {
		return s, nil
	}
	s, err := e.AdoptStream(uintptr(handle))
	if err != nil {
		return nil, err
	}
	if e.streams == nil {
		e.streams = make(map[uint64]*kvlane.HostStream)
	}
	e.streams[handle] = s
	return s, nil
}

// recorded returns the dependency on the work enqueued on a stream so far. Without a stream it
// returns none.
func (e *engine) recorded(after *uint64) ([]mem.Dependency, error) {
	if after == nil {
		return nil, nil
	}
	s, err := e.stream(*after)
	if err != nil {
		return nil, err
	}
	r, err := s.Recorded()
	if err != nil {
		return nil, err
	}
	return []mem.Dependency{r}, nil
}

// Open opens an engine. config is its configuration in JSON.
func (l *Library) Open(config []byte) (Handle, error) {
	c, err := ParseConfig(config)
	if err != nil {
		return 0, fmt.Errorf("open engine: %w", err)
	}
	e, err := kvlane.Open(context.Background(), c)
	if err != nil {
		return 0, err
	}
	return l.handles.add(&engine{Engine: e}), nil
}

// Close closes an engine. If it returns nil, the handles of the engine and its objects are no
// longer valid.
func (l *Library) Close(h Handle, timeoutMillis int64) error {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return err
	}
	ctx, cancel := l.within(timeoutMillis)
	defer cancel()
	if err := l.closeCopies(ctx, e); err != nil {
		return err
	}
	if err := e.Close(ctx); err != nil {
		return err
	}
	l.handles.removeOf(e)
	return nil
}

// RegisterCache registers a paged KV cache with an engine.
func (l *Library) RegisterCache(h Handle, memory []kvlane.CacheMemory) (Handle, error) {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return 0, err
	}
	c, err := e.RegisterCache(memory...)
	if err != nil {
		return 0, err
	}
	return l.handles.add(&cache{Cache: c, engine: e}), nil
}

// CloseCache unregisters a paged KV cache. If it returns nil, the handle is no longer valid.
func (l *Library) CloseCache(h Handle, timeoutMillis int64) error {
	c, err := find[*cache](&l.handles, h)
	if err != nil {
		return err
	}
	ctx, cancel := l.within(timeoutMillis)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		return err
	}
	l.handles.remove(h)
	return nil
}

// Notes returns the engine's notes as a JSON array.
func (l *Library) Notes(h Handle) ([]byte, error) {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return nil, err
	}
	notes := e.Notes()
	if notes == nil {
		notes = []string{}
	}
	return json.Marshal(notes)
}

// ReportSlowdown records by how many percent concurrent copies slow down the program's own work.
func (l *Library) ReportSlowdown(h Handle, percent float64) error {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return err
	}
	if percent != percent || percent > maxPercent {
		return invalid("slowdown of %v%%: out of range", percent)
	}
	e.ReportSlowdown(percent)
	return nil
}

// maxPercent is the maximum reported slowdown.
const maxPercent = 1e6
