package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/share"
	"github.com/kvlane/kvlane/wire"
)

// Remote is a segment of another engine. It has the segment's description as of OpenSegment or the
// last Refresh.
type Remote struct {
	e      *Engine
	p      *peer
	name   string
	number uint64

	changeLock chan struct{} // semaphore held by a call that refreshes or closes
	ended      bool          // fully closed; guarded by changeLock

	// mu is never held while waiting.
	mu      sync.Mutex
	closed  bool // Close was called
	desc    Description
	buffers []*remoteBuffer // in the order of desc
	retired []*remoteBuffer // imported buffers that were removed from the segment
	users   int             // number of unresolved batches
}

// remoteBuffer is a buffer of another engine and, if imported, its memory.
type remoteBuffer struct {
	Buffer
	imported  *share.Import
	importErr error // reason for which it is not imported, or nil
}

// OpenSegment opens the segment with the given name. Without a store, the name is "host:port/name"
// with the address of its engine, or "host:port" if the engine has only one segment. It returns
// ErrNotFound if there is no such segment, and ErrLost if its engine is gone.
func (e *Engine) OpenSegment(ctx context.Context, name string) (*Remote, error) {
	r, err := e.openSegment(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("open segment %q: %w", name, err)
	}
	return r, nil
}

func (e *Engine) openSegment(ctx context.Context, name string) (*Remote, error) {
	p, own, err := e.locate(ctx, name)
	if err != nil {
		return nil, err
	}
	r := &Remote{e: e, p: p, name: own, changeLock: make(chan struct{}, 1)}
	if err := r.Refresh(ctx); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	e.mu.Lock()
	if !e.closed {
		e.remotes[r] = struct{}{}
		e.mu.Unlock()
		return r, nil
	}
	e.mu.Unlock()
	return nil, errors.Join(errdefs.ErrClosed, r.Close())
}

// locate returns the engine of the segment, with a reference added, and the segment's name in that
// engine.
func (e *Engine) locate(ctx context.Context, name string) (_ *peer, own string, err error) {
	if e.o.Store != nil {
		value, err := e.o.Store.Get(ctx, keyPrefix+name)
		if err != nil {
			return nil, "", err
		}
		at, err := ParseLocation(value)
		if err != nil {
			return nil, "", &wire.AnswerError{Err: err}
		}
		p, err := e.peer(at.Address, at.Engine)
		return p, name, err
	}
	addr, own, _ := strings.Cut(name, "/")
	c, _, id, err := e.dial(ctx, addr, hello{purpose: forControl})
	if err != nil {
		return nil, "", err
	}
	if err := c.Close(); err != nil {
		return nil, "", err
	}
	p, err := e.peer(addr, id)
	return p, own, err
}

// Refresh updates the description of the segment and retries failed imports. Batches in progress
// use the earlier description. It returns ErrLost if the name now belongs to another segment,
// ErrMismatch for a description of a different segment, and ErrClosed after Close.
func (r *Remote) Refresh(ctx context.Context) error {
	if err := r.lockChange(ctx); err != nil {
		return err
	}
	defer func() { <-r.changeLock }()
	if err := r.open(); err != nil {
		return err
	}
	r.p.clearDialErr()
	var said json.RawMessage
	if err := r.p.call(ctx, callDescribe, describeRequest{Name: r.name}, &said); err != nil {
		return err
	}
	d, err := ParseDescription(said)
	if err != nil {
		return &wire.AnswerError{Err: err}
	}
	r.mu.Lock()
	err = r.checkDescription(&d)
	old := slices.Clone(r.buffers)
	r.mu.Unlock()
	if err != nil {
		return err
	}
	r.apply(&d, r.importAll(ctx, &d, old))
	r.closeRetired()
	return nil
}

// lockChange acquires changeLock. It returns ErrBusy if ctx ends first.
func (r *Remote) lockChange(ctx context.Context) error {
	select {
	case r.changeLock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("segment %q is being refreshed or closed: %w: %w", r.name, errdefs.ErrBusy, context.Cause(ctx))
	}
}

// checkDescription returns an error if d is not a description of this segment.
func (r *Remote) checkDescription(d *Description) error {
	switch {
	case d.Engine != r.p.id || r.name != "" && d.Name != r.name:
		return fmt.Errorf("engine %s describes itself as %s with segment %q: %w", r.p.id, d.Engine, d.Name, errdefs.ErrMismatch)
	case r.number != 0 && d.Segment != r.number:
		return fmt.Errorf("segment %q was closed, and its name belongs to another segment: %w", d.Name, errdefs.ErrLost)
	case r.number != 0 && !slices.Equal(d.NICs, r.desc.NICs):
		return fmt.Errorf("segment %q had NICs %q, and has %q: %w", d.Name, r.desc.NICs, d.NICs, errdefs.ErrMismatch)
	}
	return nil
}

// importAll returns the buffers of d. It reuses buffers of old with a valid import and tries to
// import the others.
func (r *Remote) importAll(ctx context.Context, d *Description, old []*remoteBuffer) (all []*remoteBuffer) {
	had := make(map[int64]*remoteBuffer)
	for _, b := range old {
		had[b.Offset] = b
	}
	for _, b := range d.Buffers {
		have := had[b.Offset]
		if have == nil || have.imported == nil || have.lost() != nil {
			have = &remoteBuffer{Buffer: b}
			have.imported, have.importErr = r.importBuffer(ctx, d.Host, &b)
		}
		all = append(all, have)
	}
	return all
}

// apply sets the description and the buffers. Imported buffers that are no longer in the
// description are retired.
func (r *Remote) apply(d *Description, all []*remoteBuffer) {
	kept := make(map[*remoteBuffer]bool)
	for _, b := range all {
		kept[b] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.buffers {
		if b.imported != nil && !kept[b] {
			r.retired = append(r.retired, b)
		}
	}
	r.desc, r.buffers = *d, all
	if r.number == 0 { // conns read both fields without mu
		r.name, r.number = d.Name, d.Segment
	}
}

// closeRetired closes retired buffers. Buffers with copies in progress remain for the next refresh
// or Close.
func (r *Remote) closeRetired() {
	r.mu.Lock()
	all := r.retired
	r.retired = nil
	r.mu.Unlock()
	all = slices.DeleteFunc(all, func(b *remoteBuffer) bool { return b.imported.Close() == nil })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.retired = all
}

// importBuffer imports the memory of a buffer.
func (r *Remote) importBuffer(ctx context.Context, host string, b *Buffer) (*share.Import, error) {
	switch {
	case r.e.o.Importer == nil:
		return nil, fmt.Errorf("this engine imports no memory: %w", errdefs.ErrNotSupported)
	case r.e.host == "" || host != r.e.host:
		return nil, fmt.Errorf("it is on another host: %w", errdefs.ErrNotSupported)
	case b.Share == nil:
		return nil, fmt.Errorf("it is not shared: %w", errdefs.ErrNotSupported)
	}
	return r.e.o.Importer.Import(ctx, *b.Share)
}

// lost returns an error if the memory is not imported or is lost.
func (b *remoteBuffer) lost() error {
	if b.imported == nil {
		return b.importErr
	}
	return b.imported.Region().Origin().Lost()
}

// usable returns the error of lost. It also unmaps lost memory, which would otherwise stay mapped
// until the next refresh.
func (b *remoteBuffer) usable() error {
	err := b.lost()
	if err != nil && b.imported != nil {
		_ = b.imported.Close() // if it is in use, the next call retries
	}
	return err
}

// Name returns the segment's name.
func (r *Remote) Name() string { return r.name }

// Describe returns the description as of the last refresh.
func (r *Remote) Describe() Description {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.desc
	d.Buffers = slices.Clone(d.Buffers)
	return d
}

// Shared returns nil if the buffer at the offset is accessible through imported memory, otherwise
// the reason.
func (r *Remote) Shared(offset int64) error {
	b, err := r.buffer(offset, 0)
	if err != nil {
		return err
	}
	return b.lost()
}

// RDMA returns nil if NICs can access the buffer at the offset, otherwise the reason. A transfer by
// RDMA also requires that local memory is registered with the engine's NICs.
func (r *Remote) RDMA(offset int64) error {
	b, err := r.buffer(offset, 0)
	if err != nil {
		return err
	}
	return b.rdma(r.e)
}

// rdma returns nil if the NICs of e can access the buffer, otherwise the reason.
func (b *remoteBuffer) rdma(e *Engine) error {
	switch {
	case e.local == nil:
		return fmt.Errorf("this engine has no NICs: %w", errdefs.ErrNotSupported)
	case b.Refused != "":
		return fmt.Errorf("the NICs of the segment refused it: %q: %w", b.Refused, errdefs.ErrNotSupported)
	case len(b.Keys) == 0:
		return fmt.Errorf("it is not registered with a NIC: %w", errdefs.ErrNotSupported)
	}
	return nil
}

// nics returns the number of NICs of the segment's engine.
func (r *Remote) nics() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.desc.NICs)
}

// buffer returns the buffer that contains the n bytes at off. It returns ErrInvalid if there is
// none.
func (r *Remote) buffer(off, n int64) (*remoteBuffer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.isOpen(); err != nil {
		return nil, err
	}
	i := sort.Search(len(r.buffers), func(i int) bool { return r.buffers[i].Offset > off }) - 1
	if i < 0 || n < 0 || off-r.buffers[i].Offset > r.buffers[i].Length || n > r.buffers[i].Length-(off-r.buffers[i].Offset) {
		return nil, fmt.Errorf("%d bytes at %d of segment %q are not registered: %w", n, off, r.name, errdefs.ErrInvalid)
	}
	return r.buffers[i], nil
}

// Probe sends a request to the segment's engine and returns the round-trip time. It returns ErrLost
// if the engine is gone, and ErrClosed after Close.
func (r *Remote) Probe(ctx context.Context) (time.Duration, error) {
	begun := time.Now()
	if err := r.open(); err != nil {
		return 0, fmt.Errorf("probe: %w", err)
	}
	r.p.clearDialErr()
	if err := r.p.call(ctx, callProbe, struct{}{}, nil); err != nil {
		return 0, fmt.Errorf("probe segment %q: %w", r.name, err)
	}
	return time.Since(begun), nil
}

// open returns ErrClosed after Close.
func (r *Remote) open() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.isOpen()
}

func (r *Remote) isOpen() error {
	if r.closed {
		return fmt.Errorf("segment %q: %w", r.name, errdefs.ErrClosed)
	}
	return nil
}

// use counts a batch that uses the segment. It returns ErrClosed after Close.
func (r *Remote) use() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.isOpen(); err != nil {
		return err
	}
	r.users++
	return nil
}

func (r *Remote) unuse() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.users--
}

// Close closes the segment. It returns ErrBusy while batches use it, or if its connections or
// another call do not end within Options.Stall. Then the caller may retry. After success it returns
// nil.
func (r *Remote) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), r.e.o.Stall)
	defer cancel()
	return r.close(ctx)
}

func (r *Remote) close(ctx context.Context) error {
	if err := r.lockChange(ctx); err != nil {
		return err
	}
	defer func() { <-r.changeLock }()
	if r.ended {
		return nil
	}
	r.mu.Lock()
	users := r.users
	r.closed = users == 0
	r.mu.Unlock()
	if users > 0 {
		return fmt.Errorf("close segment %q: %d batches use it: %w", r.name, users, errdefs.ErrBusy)
	}
	if err := r.p.closeConns(ctx, r); err != nil {
		return fmt.Errorf("close segment %q: %w", r.name, err)
	}
	for _, list := range []*[]*remoteBuffer{&r.buffers, &r.retired} {
		for len(*list) > 0 {
			if b := (*list)[0]; b.imported != nil {
				if err := b.imported.Close(); err != nil {
					return err
				}
			}
			*list = (*list)[1:]
		}
	}
	if err := r.p.release(ctx); err != nil {
		return fmt.Errorf("close segment %q: %w", r.name, err)
	}
	r.ended = true
	r.e.mu.Lock()
	delete(r.e.remotes, r)
	r.e.mu.Unlock()
	return nil
}
