package capi

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/inuse"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// registrar registers memory with NICs. *kvlane.Engine implements it.
type registrar interface {
	Register(regions ...*mem.Region) error
	Unregister(ctx context.Context, regions ...*mem.Region) error
}

// memory is registered memory of the program or device for stream copies.
type memory struct {
	engine *engine
	nics   registrar
	region *mem.Region
	pinned bool // pinned by this library, which must unpin it

	uses  inuse.Set
	mu    sync.Mutex
	freed bool // guarded by mu
}

// copier is a stream of copies.
type copier struct {
	engine *engine
	stream stream.Stream
}

func (*memory) kind() kind   { return memoryKind }
func (m *memory) of() object { return m.engine }
func (*copier) kind() kind   { return streamKind }
func (c *copier) of() object { return c.engine }

// copied is a submitted batch of a stream. It implements the methods of a task.
type copied struct{ *stream.Ticket }

// Errs returns the error of the batch.
func (c copied) Errs() []error {
	if err := c.Err(); err != nil {
		return []error{err}
	}
	return nil
}

// RegisterHost pins memory of the program for stream copies.
func (l *Library) RegisterHost(h Handle, b []byte) (Handle, error) {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return 0, err
	}
	return l.registerHost(e, e, b)
}

func (l *Library) registerHost(e *engine, nics registrar, b []byte) (Handle, error) {
	r, err := e.Device().RegisterHost(b)
	if err != nil {
		return 0, err
	}
	return l.register(&memory{engine: e, nics: nics, region: r, pinned: true})
}

// RegisterDevice registers memory of the engine's device for stream copies.
func (l *Library) RegisterDevice(h Handle, address uint64, bytes int64) (Handle, error) {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return 0, err
	}
	return l.registerDevice(e, e, address, bytes)
}

func (l *Library) registerDevice(e *engine, nics registrar, address uint64, bytes int64) (Handle, error) {
	r, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Device: e.Device().Info().Index, Len: bytes, Dev: mem.DevAddr(address)})
	if err != nil {
		return 0, err
	}
	return l.register(&memory{engine: e, nics: nics, region: r})
}

// register registers memory with NICs and returns its handle. If that fails and cannot be undone,
// the engine keeps the memory until it is closed.
func (l *Library) register(m *memory) (Handle, error) {
	err := m.nics.Register(m.region)
	if err == nil {
		return l.handles.add(m), nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), freeTime)
	defer cancel()
	if left := m.close(ctx); left != nil { // a NIC may still access a part of it
		l.handles.add(m) // the caller gets no handle; Close unregisters the memory
		return 0, fmt.Errorf("%w; the memory must stay until the engine is closed: %w", err, left)
	}
	return 0, err
}

// UnregisterMemory unregisters memory after the last copy that uses it. If it returns nil, the
// handle is no longer valid.
func (l *Library) UnregisterMemory(h Handle, timeoutMillis int64) error {
	m, err := find[*memory](&l.handles, h)
	if err != nil {
		return err
	}
	ctx, cancel := l.within(timeoutMillis)
	defer cancel()
	if err := m.close(ctx); err != nil {
		return err
	}
	l.handles.remove(h)
	return nil
}

func (m *memory) close(ctx context.Context) error {
	if err := m.uses.Close(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.freed {
		return nil
	}
	if err := m.nics.Unregister(ctx, m.region); err != nil {
		return err
	}
	if m.pinned {
		if err := m.engine.Device().Free(m.region); err != nil {
			return err
		}
	}
	m.freed = true
	return nil
}

// OpenStream opens a stream with the configuration of the engine's load streams.
func (l *Library) OpenStream(h Handle) (Handle, error) {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return 0, err
	}
	s, err := e.OpenStream()
	if err != nil {
		return 0, err
	}
	return l.handles.add(&copier{engine: e, stream: s}), nil
}

// CloseStream cancels copies that have not started and waits for the others. If it returns nil, the
// handle is no longer valid.
func (l *Library) CloseStream(h Handle, timeoutMillis int64) error {
	c, err := find[*copier](&l.handles, h)
	if err != nil {
		return err
	}
	ctx, cancel := l.within(timeoutMillis)
	defer cancel()
	if err := c.stream.Close(ctx); err != nil {
		return err
	}
	l.handles.remove(h)
	return nil
}

// Copies is a list of copies: lengths, and offsets in the target and the source.
type Copies struct {
	To, From           Handle
	ToAt, FromAt, Size []uint64
}

// Copy starts copies. If after is not nil, they start after the work enqueued on this stream of the
// program. The timeout limits the wait for space in the stream. If it is zero, Copy does not wait: a
// full stream is an error with the status Busy.
func (l *Library) Copy(h Handle, c *Copies, after *uint64, timeoutMillis int64) (Handle, error) {
	s, err := find[*copier](&l.handles, h)
	if err != nil {
		return 0, err
	}
	to, err := find[*memory](&l.handles, c.To)
	if err != nil {
		return 0, err
	}
	from, err := find[*memory](&l.handles, c.From)
	switch {
	case err != nil:
		return 0, err
	case to.engine != s.engine || from.engine != s.engine:
		return 0, invalid("the stream and the memory belong to different engines")
	}
	b := &mem.Batch{}
	if b.After, err = s.engine.recorded(after); err != nil {
		return 0, err
	}
	var ended func(context.Context) error
	for _, m := range []*memory{to, from} {
		u, err := m.uses.Begin()
		if err != nil {
			return 0, fmt.Errorf("the memory is being released: %w", err)
		}
		defer func() { u.Started(ended) }()
	}
	b.Dst, b.Src = extents(to.region, c.ToAt, c.Size), extents(from.region, c.FromAt, c.Size)
	ticket, err := s.submit(l, b, timeoutMillis)
	switch {
	case errors.Is(err, errPending):
		return 0, fmt.Errorf("copy: the stream is full: wait for a task: %w", errdefs.ErrBusy)
	case err != nil:
		return 0, err
	}
	ended = func(ctx context.Context) error { return inuse.Wait(ctx, ticket.Done()) }
	return l.handles.add(&task{engine: s.engine, op: copied{ticket}}), nil
}

// submit submits a batch. Streams refuse a context that has ended, so a timeout of zero becomes a
// millisecond. If it passes before the stream has looked for space, the error is not ErrBusy, and
// submit tries again with twice the time.
func (c *copier) submit(l *Library, b *mem.Batch, timeoutMillis int64) (*stream.Ticket, error) {
	ms := timeoutMillis
	if ms == 0 {
		ms = 1
	}
	for {
		ctx, cancel := l.within(ms)
		ticket, err := c.stream.Submit(ctx, b)
		cancel()
		if timeoutMillis != 0 || !errors.Is(err, errPending) || errors.Is(err, errdefs.ErrBusy) {
			return ticket, err
		}
		ms *= 2
	}
}

// extents returns extents of a region. Submit returns an error for extents outside the region.
func extents(r *mem.Region, at, size []uint64) []mem.Extent {
	out := make([]mem.Extent, len(at))
	for i := range at {
		out[i] = mem.Extent{Region: r, Off: int64(min(at[i], math.MaxInt64)), Len: int64(min(size[i], math.MaxInt64))}
	}
	return out
}

// closeCopies closes all streams of an engine and unregisters its memory.
func (l *Library) closeCopies(ctx context.Context, e *engine) error {
	var streams []*copier
	var memories []*memory
	for _, o := range l.handles.allOf(e) {
		switch o := o.(type) {
		case *copier:
			streams = append(streams, o)
		case *memory:
			memories = append(memories, o)
		}
	}
	for _, c := range streams {
		if err := c.stream.Close(ctx); err != nil {
			return err
		}
	}
	for _, m := range memories {
		if err := m.close(ctx); err != nil {
			return err
		}
	}
	return nil
}
