// Package blockhost keeps the blocks of many tenants and identities in one bounded pool of host
// memory. Blocks that were not used for the longest time are evicted, whatever their identity.
//
// Images arrive in pieces, in any order. A block is found when it has all of its bytes and they are
// verified. All methods are safe for concurrent use.
package blockhost

import (
	"container/list"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
)

// maxSpaces bounds the identities of a tenant.
const maxSpaces = 4096

// Usage has the figures of a tenant.
type Usage struct {
	Blocks, Bytes        int64 // complete blocks
	Hits, Misses, Stores int64
	Evictions            int64
	Leased               int64 // blocks leased now; one that is leased twice counts twice
}

// Host is a pool of blocks.
type Host struct {
	capacity int64

	mu      sync.Mutex
	used    int64              // bytes of all memory, including free
	leased  int64              // bytes of leases
	free    map[int64][][]byte // memory by its length
	tenants map[string]*tenant
	order   *list.List // of *entry, the one used last in front
	closed  bool
}

type tenant struct {
	usage  Usage
	spaces map[block.Digest]*Space
}

// Space has the blocks of one identity of one tenant.
type Space struct {
	h      *Host
	t      *tenant
	format block.Format
	blocks map[block.Key]*entry
}

// entry is a block, complete or not. The host's mutex guards it.
type entry struct {
	space  *Space
	key    block.Key
	image  []byte
	ready  bool
	gone   bool // not in blocks any more; the last user frees the memory
	users  int  // pins, and writes in progress
	leases int
	spans  []span // complete or being written, sorted, disjoint
	got    int64  // bytes of complete spans
	checks bool   // all bytes are complete and being verified
	place  *list.Element
}

// span is the part of an image from byte from to byte to.
type span struct {
	from, to int64
	complete bool
}

// New returns an empty host with at most that many bytes of images.
func New(capacityBytes int64) (*Host, error) {
	if capacityBytes <= 0 {
		return nil, fmt.Errorf("open block host of %d bytes: %w", capacityBytes, errdefs.ErrInvalid)
	}
	return &Host{capacity: capacityBytes, free: make(map[int64][][]byte), tenants: make(map[string]*tenant), order: list.New()}, nil
}

// CapacityBytes returns the bound.
func (h *Host) CapacityBytes() int64 { return h.capacity }

// Space returns the space of an identity of a tenant. It returns ErrMismatch if the identity is
// known with another layout, and ErrNoSpace for images longer than the capacity.
func (h *Host) Space(name string, f block.Format) (*Space, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f.Layout.ImageBytes() > h.capacity {
		return nil, fmt.Errorf("open identity with images of %d bytes, of at most %d: %w", f.Layout.ImageBytes(), h.capacity, errdefs.ErrNoSpace)
	}
	t := h.tenants[name]
	if t == nil {
		t = &tenant{spaces: make(map[block.Digest]*Space)}
		h.tenants[name] = t
	}
	s := t.spaces[f.Identity]
	if s == nil && len(t.spaces) >= maxSpaces {
		return nil, fmt.Errorf("open identity %d of a tenant, of at most %d: %w", len(t.spaces)+1, maxSpaces, errdefs.ErrNoSpace)
	}
	if s == nil {
		s = &Space{h: h, t: t, format: f, blocks: make(map[block.Key]*entry)}
		t.spaces[f.Identity] = s
	}
	if !s.format.Layout.Equal(f.Layout) {
		return nil, fmt.Errorf("open identity %s with another layout: %w", f.Identity, errdefs.ErrMismatch)
	}
	return s, nil
}

// Usage returns the figures of a tenant.
func (h *Host) Usage(name string) Usage {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.tenants[name]; t != nil {
		return t.usage
	}
	return Usage{}
}

// Close frees all memory. It returns ErrBusy while blocks are pinned or written, and may be called
// again.
func (h *Host) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for h.evict() {
	}
	err := h.freeUnused()
	if h.used > 0 {
		return errors.Join(err, fmt.Errorf("close block host: %d bytes are in use: %w", h.used, errdefs.ErrBusy))
	}
	return err
}

// alloc returns memory for an image. The caller holds mu.
func (h *Host) alloc(n int64) ([]byte, error) {
	for {
		if list := h.free[n]; len(list) > 0 {
			b := list[len(list)-1]
			h.free[n] = list[:len(list)-1]
			return b, nil
		}
		if h.used+n <= h.capacity {
			b, err := hostmem.Alloc(n)
			if err == nil {
				h.used += n
			}
			return b, err
		}
		if !h.evict() {
			before := h.used
			if err := h.freeUnused(); err != nil {
				return nil, err
			}
			if h.used == before {
				return nil, fmt.Errorf("find %d bytes: all %d are in use: %w", n, h.capacity, errdefs.ErrBusy)
			}
			continue
		}
		if len(h.free[n]) == 0 { // memory of other lengths makes space
			if err := h.freeUnused(); err != nil {
				return nil, err
			}
		}
	}
}

// evict makes the memory of the coldest unused block free. The caller holds mu.
func (h *Host) evict() bool {
	for at := h.order.Back(); at != nil; at = at.Prev() {
		if e, ok := at.Value.(*entry); ok && e.users == 0 {
			if e.ready {
				e.space.t.usage.Evictions++
			}
			e.drop()
			return true
		}
	}
	return false
}

// freeUnused returns free memory to the system. The caller holds mu.
func (h *Host) freeUnused() error {
	for n, all := range h.free {
		for len(all) > 0 {
			b := all[len(all)-1]
			if err := hostmem.Free(b); err != nil {
				return fmt.Errorf("free memory of a block: %w", err) // it stays counted
			}
			all = all[:len(all)-1]
			h.free[n] = all
			h.used -= n
		}
		delete(h.free, n)
	}
	return nil
}

// drop removes the block. Its memory becomes free with its last user. The caller holds mu.
func (e *entry) drop() {
	s := e.space
	if !e.gone {
		e.gone = true
		delete(s.blocks, e.key)
		s.h.order.Remove(e.place)
		if e.ready {
			s.t.usage.Blocks--
			s.t.usage.Bytes -= int64(len(e.image))
		}
	}
	if e.users == 0 {
		n := int64(len(e.image))
		s.h.free[n] = append(s.h.free[n], e.image)
		e.image = nil
	}
}

// unuse ends a use. The caller holds mu.
func (e *entry) unuse() {
	if e.users--; e.gone && e.users == 0 {
		e.drop()
	}
}

// Block is a pinned block.
type Block struct {
	e     *entry
	lease bool
}

// Bytes returns the image, which must not be changed.
func (b Block) Bytes() []byte { return b.e.image }

// Release ends the pin. It must be called once.
func (b Block) Release() {
	h := b.e.space.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if b.lease {
		b.e.leases--
		b.e.space.t.usage.Leased--
		h.leased -= int64(len(b.e.image))
	}
	b.e.unuse()
}

// Get pins a complete block. It returns ErrNotFound for a miss.
func (s *Space) Get(key block.Key) (Block, error) { return s.pin(key, false) }

// Lease pins a complete block, which cannot be deleted then. It returns ErrNotFound for a miss, and
// ErrBusy if leases would have more than half of the memory.
func (s *Space) Lease(key block.Key) (Block, error) { return s.pin(key, true) }

func (s *Space) pin(key block.Key, lease bool) (Block, error) {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	e := s.blocks[key]
	switch {
	case e == nil || !e.ready:
		s.t.usage.Misses++
		return Block{}, fmt.Errorf("block %s: %w", key, errdefs.ErrNotFound)
	case lease && s.h.leased+int64(len(e.image)) > s.h.capacity/2:
		return Block{}, fmt.Errorf("lease block %s: leases have %d bytes of %d: %w", key, s.h.leased, s.h.capacity, errdefs.ErrBusy)
	case lease:
		e.leases++
		s.t.usage.Leased++
		s.h.leased += int64(len(e.image))
	}
	s.t.usage.Hits++
	e.users++
	s.h.order.MoveToFront(e.place)
	return Block{e, lease}, nil
}

// Contains reports whether a block is complete. It is no use of the block.
func (s *Space) Contains(key block.Key) bool {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	e := s.blocks[key]
	return e != nil && e.ready
}

// Delete deletes a block. It returns ErrNotFound, and ErrBusy for a leased or incomplete one.
func (s *Space) Delete(key block.Key) error {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	e := s.blocks[key]
	switch {
	case e == nil:
		return fmt.Errorf("delete block %s: %w", key, errdefs.ErrNotFound)
	case e.leases > 0 || !e.ready:
		return fmt.Errorf("delete block %s: it is leased or incomplete: %w", key, errdefs.ErrBusy)
	}
	e.drop()
	return nil
}

// Write is a piece of an image that is being written.
type Write struct {
	e *entry
	span
}

// Write returns the memory of a piece, which may be written again until the block is complete. It
// returns ErrExists if the block is complete, ErrBusy if these bytes are being written, overlap
// others, or no memory is free, and ErrInvalid for bytes outside the image.
func (s *Space) Write(key block.Key, off, n int64) (*Write, error) {
	if image := s.format.Layout.ImageBytes(); off < 0 || n <= 0 || n > image || off > image-n {
		return nil, fmt.Errorf("write %d bytes at %d of a block of %d: %w", n, off, image, errdefs.ErrInvalid)
	}
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	e, w := s.blocks[key], span{from: off, to: off + n}
	switch {
	case s.h.closed:
		return nil, fmt.Errorf("write block %s: %w", key, errdefs.ErrClosed)
	case e != nil && e.ready:
		return nil, fmt.Errorf("write block %s: %w", key, errdefs.ErrExists)
	case e == nil:
		image, err := s.h.alloc(s.format.Layout.ImageBytes())
		if err != nil {
			return nil, err
		}
		e = &entry{space: s, key: key, image: image}
		e.place = s.h.order.PushFront(e)
		s.blocks[key] = e
	}
	at, found := slices.BinarySearchFunc(e.spans, w, func(a, b span) int { return int(a.from - b.from) })
	if found && e.spans[at] == (span{w.from, w.to, true}) && !e.checks { // the piece is sent again
		e.spans[at].complete = false
		e.got -= n
		e.users++
		return &Write{e, w}, nil
	}
	if found || at > 0 && e.spans[at-1].to > w.from || at < len(e.spans) && e.spans[at].from < w.to {
		return nil, fmt.Errorf("write %d bytes at %d of block %s, which another write has: %w", n, off, key, errdefs.ErrBusy)
	}
	e.spans = slices.Insert(e.spans, at, w)
	e.users++
	return &Write{e, w}, nil
}

// Bytes returns the memory of the piece.
func (w *Write) Bytes() []byte { return w.e.image[w.from:w.to:w.to] }

// Abort gives the piece up: its bytes are undefined. Abort or Done must be called once.
func (w *Write) Abort() {
	e := w.e
	e.space.h.mu.Lock()
	defer e.space.h.mu.Unlock()
	if at := slices.Index(e.spans, w.span); at >= 0 {
		e.spans = slices.Delete(e.spans, at, at+1)
	}
	e.unuse()
}

// Done ends the write of a piece whose bytes are complete. With the last piece it verifies the
// image and publishes the block. It returns the error of the verification; then the block is
// dropped.
func (w *Write) Done() error {
	e, h := w.e, w.e.space.h
	h.mu.Lock()
	e.got += w.to - w.from
	if at := slices.Index(e.spans, w.span); at >= 0 {
		e.spans[at].complete = true
	}
	last := e.got == int64(len(e.image)) && !e.gone
	e.checks = last
	h.mu.Unlock()
	var err error
	if last {
		err = e.space.format.Verify(e.image, e.key)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err != nil:
		e.drop()
	case last && !e.gone:
		e.ready, e.spans = true, nil
		h.order.MoveToFront(e.place)
		t := &e.space.t.usage
		t.Blocks, t.Bytes, t.Stores = t.Blocks+1, t.Bytes+int64(len(e.image)), t.Stores+1
	}
	e.unuse()
	return err
}

// Layout returns the layout of the space's images.
func (s *Space) Layout() *block.Layout { return s.format.Layout }
