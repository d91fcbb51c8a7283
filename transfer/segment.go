package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma/rail"
	"github.com/kvlane/kvlane/share"
	"github.com/kvlane/kvlane/wire"
)

// keyPrefix is the prefix of the keys of segments in the store.
const keyPrefix = "kvlane/segment/"

// align is the alignment of buffers in a segment.
const align = 4096

// Segment is a set of registered Regions under a name.
type Segment struct {
	e      *Engine
	name   string
	number uint64
	table  *wire.Table
	// domain has the memory and queue pairs of this segment. Nil without NICs.
	domain atomic.Pointer[rail.Domain]

	changeLock chan struct{} // semaphore held by a call that registers memory or closes
	next       int64         // first unused offset; guarded by changeLock

	// mu is never held while waiting.
	mu      sync.Mutex
	closed  bool
	buffers []*buffer
}

// buffer is a registered Region of a segment.
type buffer struct {
	desc   Buffer
	bytes  int // length of desc in JSON
	region *mem.Region
	export *share.Export

	leaving chan struct{} // semaphore held by a call that removes the buffer
	gone    bool          // the buffer was removed; guarded by leaving
}

// Publish creates an empty segment and puts its location into the store. Names should be unique: if
// several engines publish a name, the last one owns it. Publish returns ErrExists if this engine
// has a segment with that name, or an error of the store.
func (e *Engine) Publish(ctx context.Context, name string) (*Segment, error) {
	if err := checkName(name); err != nil {
		return nil, fmt.Errorf("publish segment: %w", err)
	}
	e.mu.Lock()
	if e.closed || e.names[name] != nil {
		defer e.mu.Unlock()
		if e.closed {
			return nil, fmt.Errorf("publish segment %q: %w", name, errdefs.ErrClosed)
		}
		return nil, fmt.Errorf("publish segment %q: %w", name, errdefs.ErrExists)
	}
	e.segments++
	s := &Segment{e: e, name: name, number: e.segments, table: wire.NewTable(e.mover), changeLock: make(chan struct{}, 1)}
	e.names[name], e.numbers[s.number] = s, s
	e.mu.Unlock()
	if err := e.put(ctx, name); err != nil {
		// ctx may have ended.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.o.Stall)
		defer cancel()
		return nil, fmt.Errorf("publish segment %q: %w", name, errors.Join(err, s.Close(ctx)))
	}
	return s, nil
}

// put puts the location of a segment into the store.
func (e *Engine) put(ctx context.Context, name string) error {
	if e.o.Store == nil {
		return nil
	}
	value, err := json.Marshal(Location{Engine: e.id, Address: e.addr})
	if err != nil {
		return err
	}
	return e.o.Store.Put(ctx, keyPrefix+name, value, e.o.Lease)
}

// renewals is the number of leases that are renewed concurrently. If the store is slow, thousands
// of leases could not be renewed in time one after another.
const renewals = 16

// renew renews the leases of the segments until the engine closes. It also restores locations that
// the store has lost.
func (e *Engine) renew() {
	for pause(e.ctx, e.o.Lease/3) {
		err := e.renewAll()
		e.mu.Lock()
		e.metaErr = err
		e.mu.Unlock()
	}
}

// renewAll renews every lease once. It has a time limit and returns the first error.
func (e *Engine) renewAll() error {
	ctx, cancel := context.WithTimeout(e.ctx, max(e.o.Lease/3, time.Second))
	defer cancel()
	var renewing errgroup.Group
	renewing.SetLimit(renewals)
	for _, s := range e.allSegments() {
		renewing.Go(func() error { return e.renewOne(ctx, s.name) })
	}
	return renewing.Wait()
}

func (e *Engine) renewOne(ctx context.Context, name string) error {
	err := e.put(ctx, name)
	if _, gone := e.find(name); gone != nil { // the segment was closed meanwhile
		err = errors.Join(err, e.o.Store.Delete(ctx, keyPrefix+name))
	}
	return err
}

// RegisterOptions are the options of Register.
type RegisterOptions struct {
	// Name is a name of the buffer for other processes. Optional.
	Name string
	// Source exports the Region to processes of this host through Options.Share: its device, or a
	// share.HostMemory. Nil: the Region is not shared.
	Source share.Source
}

// Register adds r to the segment and returns its offset. The first offset is 0, and offsets are not
// reused. Other processes may then read and write r. A process that has already opened the segment
// must call Remote.Refresh first.
//
// Register returns ErrNotSupported if the engine cannot transfer r, the source cannot export it, or
// the NICs cannot access it. With Options.NICsOptional a refusal of the NICs is not an error, and
// Buffer.Refused has the cause. It returns ErrExists if NICs are used and r overlaps other memory
// of the segment. It returns ErrBusy if the segment has MaxBuffers buffers, its description exceeds
// 4 MiB, or another call registers or closes until ctx ends.
func (s *Segment) Register(ctx context.Context, r *mem.Region, o RegisterOptions) (int64, error) {
	off, err := s.register(ctx, r, o)
	if err != nil {
		return 0, fmt.Errorf("register memory in segment %q: %w", s.name, err)
	}
	return off, nil
}

func (s *Segment) register(ctx context.Context, r *mem.Region, o RegisterOptions) (int64, error) {
	if len(o.Name) > MaxNameBytes || !utf8.ValidString(o.Name) {
		return 0, fmt.Errorf("name %q is not UTF-8 of at most %d bytes: %w", o.Name, MaxNameBytes, errdefs.ErrInvalid)
	}
	if err := s.lockChange(ctx); err != nil {
		return 0, err
	}
	defer func() { <-s.changeLock }()
	if err := s.checkSpace(); err != nil {
		return 0, err
	}
	if err := s.e.mover.Moves(r); err != nil {
		return 0, err
	}
	b := &buffer{desc: Buffer{Name: o.Name, Offset: s.next, Length: r.Len(), Kind: r.Kind().String()}, region: r, leaving: make(chan struct{}, 1)}
	if o.Source != nil && s.e.o.Share != nil {
		x, err := s.e.o.Share.Export(o.Source, r)
		if err != nil {
			return 0, err
		}
		d := x.Descriptor()
		b.export, b.desc.Share = x, &d
	}
	err := s.offer(b)
	if err == nil {
		if err = s.fits(b); err == nil {
			err = s.table.Add(uint64(s.next), r)
		}
		if err != nil {
			err = errors.Join(err, s.withdraw(s.e.ctx, b))
		}
	}
	if err != nil {
		if b.export != nil {
			err = errors.Join(err, b.export.Close(s.e.ctx)) // no importer can have its identity
		}
		return 0, err
	}
	s.mu.Lock()
	s.buffers = append(s.buffers, b)
	s.mu.Unlock()
	s.next += (r.Len() + align - 1) / align * align
	return b.desc.Offset, nil
}

// lockChange acquires changeLock. It returns ErrBusy if ctx ends first.
func (s *Segment) lockChange(ctx context.Context) error {
	select {
	case s.changeLock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("another call changes it: %w: %w", errdefs.ErrBusy, context.Cause(ctx))
	}
}

// checkSpace returns an error if no buffer can be added.
func (s *Segment) checkSpace() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return errdefs.ErrClosed
	case len(s.buffers) >= MaxBuffers:
		return fmt.Errorf("%d buffers are registered: %w", len(s.buffers), errdefs.ErrBusy)
	}
	return nil
}

// fits returns an error if the segment's description with b would be too long.
func (s *Segment) fits(b *buffer) error {
	own, err := json.Marshal(&b.desc)
	if err != nil {
		return err
	}
	b.bytes = len(own) + len(",")
	s.mu.Lock()
	defer s.mu.Unlock()
	description := s.description()
	head, err := json.Marshal(&description)
	if err != nil {
		return err
	}
	n := len(head) + b.bytes
	for _, other := range s.buffers {
		n += other.bytes
	}
	if n > maxFramePayload {
		return fmt.Errorf("%d buffers are registered, and with another one the description of the segment exceeds %d bytes: %w", len(s.buffers), maxFramePayload, errdefs.ErrBusy)
	}
	return nil
}

// Unregister removes the region at that offset. If it returns nil, neither requests nor copies of
// importers access the region any more; copies that end after the call are not reported as
// successful. Connections whose requests take longer than Options.Stall are ended. If ctx ends
// first, the region must not be freed, and the caller must retry. The error then names the users;
// for importers it is ErrBusy.
func (s *Segment) Unregister(ctx context.Context, offset int64) error {
	all := s.list()
	i := slices.IndexFunc(all, func(b *buffer) bool { return b.desc.Offset == offset })
	if i < 0 {
		return fmt.Errorf("unregister memory at %d of segment %q: %w", offset, s.name, errdefs.ErrNotFound)
	}
	return s.remove(ctx, all[i])
}

// list returns the buffers.
func (s *Segment) list() []*buffer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.buffers)
}

// remove removes a buffer. It does nothing if the buffer was already removed. After an error it may
// be retried.
func (s *Segment) remove(ctx context.Context, b *buffer) error {
	select {
	case b.leaving <- struct{}{}:
		defer func() { <-b.leaving }()
	case <-ctx.Done():
		return fmt.Errorf("segment %q: another call removes the memory at %d: %w: %w", s.name, b.desc.Offset, errdefs.ErrBusy, context.Cause(ctx))
	}
	if b.gone {
		return nil
	}
	if b.export != nil {
		if err := b.export.Close(ctx); err != nil {
			return fmt.Errorf("segment %q: %w", s.name, err)
		}
	}
	if err := s.withdraw(ctx, b); err != nil {
		return fmt.Errorf("segment %q: %w", s.name, err)
	}
	if err := s.clear(ctx, uint64(b.desc.Offset)); err != nil {
		return fmt.Errorf("segment %q: %w", s.name, err)
	}
	b.gone = true
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buffers = slices.DeleteFunc(s.buffers, func(other *buffer) bool { return other == b })
	return nil
}

// clear removes memory from the table. It ends requests that take long, because a slow peer could
// keep the memory in use indefinitely.
func (s *Segment) clear(ctx context.Context, at uint64) error {
	soon, cancel := context.WithTimeout(ctx, s.e.o.Stall)
	defer cancel()
	err := s.table.Remove(soon, at)
	if err == nil || ctx.Err() != nil {
		return err
	}
	s.table.End(at)
	return s.table.Remove(ctx, at)
}

// Name returns the segment's name.
func (s *Segment) Name() string { return s.name }

// Describe returns the description of the segment.
func (s *Segment) Describe() Description {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.description()
	for _, b := range s.buffers {
		d.Buffers = append(d.Buffers, b.desc)
	}
	return d
}

// description returns the segment's description without buffers.
func (s *Segment) description() Description {
	return Description{Name: s.name, Engine: s.e.id, Segment: s.number, Host: s.e.host, NICs: s.e.o.NICs.Names()}
}

// Close unregisters all memory and removes the segment from the engine and the store. If the store
// does not respond, the entry remains until its lease expires. After success, Close returns nil.
func (s *Segment) Close(ctx context.Context) error {
	e := s.e
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	if err := s.lockChange(ctx); err != nil {
		return fmt.Errorf("close segment: %w", err)
	}
	defer func() { <-s.changeLock }()
	for _, b := range s.list() {
		if err := s.remove(ctx, b); err != nil {
			return fmt.Errorf("close segment: %w", err)
		}
	}
	if err := s.disconnect(ctx); err != nil {
		return fmt.Errorf("close segment: %w", err)
	}
	e.mu.Lock()
	delete(e.numbers, s.number)
	named := e.names[s.name] == s
	if named {
		delete(e.names, s.name)
	}
	e.mu.Unlock()
	if named && e.o.Store != nil {
		if err := e.o.Store.Delete(ctx, keyPrefix+s.name); err != nil {
			e.mu.Lock()
			e.metaErr = err
			e.mu.Unlock()
		}
	}
	return nil
}

// find returns the segment with the given name. With an empty name it returns the only segment.
func (e *Engine) find(name string) (*Segment, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if name == "" && len(e.names) == 1 {
		for _, s := range e.names {
			return s, nil
		}
	}
	if s := e.names[name]; s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("segment %q: %w", name, errdefs.ErrNotFound)
}
