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

// maxMillis is the longest time in milliseconds that a time.Duration holds.
const maxMillis = math.MaxInt64 / int64(time.Millisecond)

// Library holds engines and their objects behind handles. Create it with New.
type Library struct {
	handles    handles
	allocators allocators
	past       context.Context // ended by errPending, before anything began
	busy       context.Context // ended by errNotNow
	refs       sync.Pool       // of *[]kvlane.Ref, which the store copies
}

// errNotNow is the cause for calls that do not wait for a free task.
var errNotNow = fmt.Errorf("too many loads, dumps and prefetches in progress: wait for one: %w", errdefs.ErrBusy)

// New returns a library without any engine.
func New() *Library {
	ended := func(cause error) context.Context {
		ctx, end := context.WithCancelCause(context.Background())
		end(cause)
		return ctx
	}
	return &Library{past: ended(errPending), busy: ended(errNotNow)}
}

// within returns a context with a timeout in milliseconds. A context of zero has ended; one of a
// negative timeout never ends.
func (l *Library) within(ms int64) (context.Context, context.CancelFunc) {
	switch {
	case ms == 0:
		return l.past, func() {}
	case ms < 0 || ms > maxMillis:
		return context.Background(), func() {}
	}
	return context.WithTimeoutCause(context.Background(), time.Duration(ms)*time.Millisecond, errPending)
}

// looking is within for calls that wait only for answers of tiers. They wait even if ms is zero.
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

// recorded returns the dependency on the work enqueued on a stream so far; none without a stream.
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

// Open opens an engine with a configuration in JSON.
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

// Close closes an engine. If it returns nil, the handles of the engine and its objects have ended.
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

// CloseCache unregisters a paged KV cache. If it returns nil, the handle has ended.
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

// Notes returns the notes of the opening of an engine as a JSON array.
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

// ReportSlowdown records the slowdown of the program's own work by concurrent copies, in percent.
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

// maxPercent bounds a reported slowdown.
const maxPercent = 1e6
