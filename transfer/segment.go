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

// keyPrefix is before a segment's name in the store.
const keyPrefix = "kvlane/segment/"

// align is what offsets of buffers are multiples of.
const align = 4096

// Segment is a set of registered Regions under a name.
type Segment struct {
	e      *Engine
	name   string
	number uint64
	table  *wire.Table
	domain atomic.Pointer[rail.Domain] // of the buffers, if there are NICs; others than its queue pairs get at none of them

	changeLock chan struct{} // a token: one at a time registers or closes
	next       int64         // the first offset that no buffer has had; with changing

	// mu is held for no wait: whoever asks what the segment has takes it.
	mu      sync.Mutex
	closed  bool
	buffers []*buffer
}

// buffer is a Region in a segment.
type buffer struct {
	desc   Buffer
	bytes  int // of desc in a description
	region *mem.Region
	export *share.Export

	leaving chan struct{} // a token: one at a time takes the buffer away
	gone    bool          // somebody has; with leaving
}

// Publish makes an empty segment, and puts where it is into the store. The name should be nobody else's: the last who takes it has it.
// ErrExists if this engine has a segment of that name; or what the store says.
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
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.o.Stall) // ctx may have ended
		defer cancel()
		return nil, fmt.Errorf("publish segment %q: %w", name, errors.Join(err, s.Close(ctx)))
	}
	return s, nil
}

// put says in the store that this engine has the segment.
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

// renewals is how many leases are renewed at a time: a store that takes milliseconds for each has thousands to keep up with.
const renewals = 16

// renew renews the segments' leases until the engine closes. Those that a store has lost are there again.
func (e *Engine) renew() {
	for pause(e.ctx, e.o.Lease/3) {
		err := e.renewAll()
		e.mu.Lock()
		e.metaErr = err
		e.mu.Unlock()
	}
}

// renewAll renews every lease once, as far as time allows, and returns why one was not.
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
	if _, gone := e.find(name); gone != nil { // it was closed meanwhile
		err = errors.Join(err, e.o.Store.Delete(ctx, keyPrefix+name))
	}
	return err
}

// RegisterOptions say how a Region is registered.
type RegisterOptions struct {
	// Name is for those who open the segment.
	Name string
	// Source exports the Region to processes of this host, by Options.Share: the device that has it, or share.HostMemory. Nil: it is
	// reached by sockets only.
	Source share.Source
}

// Register adds r to the segment and returns its offset there. From then on others may read and write it. The first is at 0, and no
// offset is used twice. Who has opened the segment knows of r after Remote.Refresh. ErrNotSupported for memory that the engine cannot
// move, the source not export, or the engine's NICs not reach, and what those say, unless they are Options.NICsOptional: Buffer.Refused says it
// then. ErrExists for memory that overlaps some of the segment where there are NICs; ErrBusy for more than MaxBuffers, or than 4 MiB
// describe: names, keys and what is shared count there. It waits for another call that registers or closes until ctx ends, as ErrBusy.
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
	if err := s.room(); err != nil {
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
			err = errors.Join(err, b.export.Close(s.e.ctx)) // of which nobody has heard
		}
		return 0, err
	}
	s.mu.Lock()
	s.buffers = append(s.buffers, b)
	s.mu.Unlock()
	s.next += (r.Len() + align - 1) / align * align
	return b.desc.Offset, nil
}

// change takes the token. ErrBusy if ctx ends first.
func (s *Segment) lockChange(ctx context.Context) error {
	select {
	case s.changeLock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("another call is at it: %w: %w", errdefs.ErrBusy, context.Cause(ctx))
	}
}

// room returns why no buffer may be added, or nil.
func (s *Segment) room() error {
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

// fits returns why the segment could not be described with b too, or nil.
func (s *Segment) fits(b *buffer) error {
	own, err := json.Marshal(&b.desc)
	if err != nil {
		return err
	}
	b.bytes = len(own) + len(",")
	s.mu.Lock()
	defer s.mu.Unlock()
	bare := s.description()
	head, err := json.Marshal(&bare)
	if err != nil {
		return err
	}
	n := len(head) + b.bytes
	for _, other := range s.buffers {
		n += other.bytes
	}
	if n > maxFramePayload {
		return fmt.Errorf("%d buffers are registered, and with another one the segment is described in more than %d bytes: %w", len(s.buffers), maxFramePayload, errdefs.ErrBusy)
	}
	return nil
}

// Unregister takes the region at that offset away. When it returns nil nothing touches it any more, neither requests nor copies of importers;
// those that ended after the call are not reported good. Requests that take longer than Options.Stall then lose their connection. If ctx ends first the error says who may still touch the memory, as ErrBusy for
// importers: it must not be freed, and Unregister may be called again.
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

// remove takes a buffer away, unless somebody has. After an error it may be called again.
func (s *Segment) remove(ctx context.Context, b *buffer) error {
	select {
	case b.leaving <- struct{}{}:
		defer func() { <-b.leaving }()
	case <-ctx.Done():
		return fmt.Errorf("segment %q: another call waits for those who touch memory at %d: %w: %w", s.name, b.desc.Offset, errdefs.ErrBusy, context.Cause(ctx))
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

// clear takes memory out of the table. Requests that take long are ended: whoever trickles would hold it without end.
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

// Describe returns what the segment has.
func (s *Segment) Describe() Description {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.description()
	for _, b := range s.buffers {
		d.Buffers = append(d.Buffers, b.desc)
	}
	return d
}

// description is that without buffers.
func (s *Segment) description() Description {
	return Description{Name: s.name, Engine: s.e.id, Segment: s.number, Host: s.e.host, NICs: s.e.o.NICs.Names()}
}

// Close takes the segment away, from the store too: a store that does not answer forgets it with its lease. It is Unregister for all that is
// registered. A second Close returns nil.
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

// find returns the segment of that name; the only one, without.
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
