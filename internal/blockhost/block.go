package blockhost

import (
	"container/heap"
	"context"
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

// inUse is the place of a block that is not in its tenant's heap.
const inUse = -1

// entry is a block, complete or not. The host's mutex guards it.
type entry struct {
	space  *Space
	key    block.Key
	memory *memory
	image  []byte // of memory
	ready  bool
	gone   bool // not in blocks any more; the last user frees the memory
	users  int  // pins, and writes in progress
	leases int
	spans  []span // complete or being written, sorted, disjoint
	got    int64  // bytes of complete spans
	checks bool   // all bytes are complete and being verified

	loading chan struct{} // closed when the block is read from disk; nil: it is not read
	write   *pendingWrite // to disk; nil: none
	kept    bool          // on disk, when it was written or read

	value float64
	used  uint64 // the host's uses at the last use
	at    int    // in the tenant's heap, or inUse
}

// span is the part of an image from byte from to byte to.
type span struct {
	from, to int64
	complete bool
}

// drop removes the block. Its memory becomes free with its last user. The caller holds mu.
func (e *entry) drop() {
	s := e.space
	if !e.gone {
		e.gone = true
		delete(s.blocks, e.key)
		if e.at != inUse {
			heap.Remove(&s.t.cold, e.at)
		}
		if e.ready {
			s.t.usage.Blocks--
			s.t.usage.Bytes -= int64(len(e.image))
		}
		s.forgetEmpty()
	}
	if e.users == 0 {
		n := int64(len(e.memory.bytes))
		s.h.free[n] = append(s.h.free[n], e.memory)
		s.t.used -= n
		e.memory, e.image = nil, nil
	}
}

// Block is a pinned block.
type Block struct {
	e     *entry // in memory; nil: on disk
	lease bool

	s   *Space // of a lease on disk
	key block.Key
}

// Bytes returns the image, which must not be changed.
func (b Block) Bytes() []byte { return b.e.image }

// Release ends the pin. It must be called once.
func (b Block) Release() {
	if b.e == nil {
		b.releaseDisk()
		return
	}
	h := b.e.space.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if b.lease {
		b.e.space.t.usage.Leased--
		if b.e.leases--; b.e.leases == 0 {
			h.leased -= int64(len(b.e.image))
		}
	}
	b.e.unuse()
}

// Get pins a complete block. It returns ErrNotFound for a miss.
func (s *Space) Get(key block.Key) (Block, error) {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	return s.pin(key, false)
}

// Lease pins a complete block, on disk if it is there, which cannot be deleted then. It returns
// ErrNotFound for a miss, and ErrBusy if leases would have more than half of the memory or disk. A
// block on disk only has no Bytes.
func (s *Space) Lease(ctx context.Context, key block.Key) (Block, error) {
	blocks, err := s.LeasePrefix(ctx, []block.Key{key})
	if len(blocks) == 0 {
		return Block{}, err
	}
	return blocks[0], nil
}

// pin pins a complete block in memory. The caller holds mu.
func (s *Space) pin(key block.Key, lease bool) (Block, error) {
	e := s.blocks[key]
	switch {
	case e == nil || !e.ready:
		s.t.usage.Misses++
		return Block{}, fmt.Errorf("block %s: %w", key, errdefs.ErrNotFound)
	case lease && e.leases == 0 && s.h.leased+int64(len(e.image)) > s.h.o.CapacityBytes/2:
		return Block{}, fmt.Errorf("lease block %s: leases have %d bytes of %d: %w", key, s.h.leased, s.h.o.CapacityBytes, errdefs.ErrBusy)
	case lease:
		if e.leases++; e.leases == 1 {
			s.h.leased += int64(len(e.image))
		}
		s.t.usage.Leased++
	}
	s.t.usage.Hits++
	e.use()
	return Block{e: e, lease: lease}, nil
}

// Contains reports whether a block is complete in memory. It is no use of the block.
func (s *Space) Contains(key block.Key) bool {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	e := s.blocks[key]
	return e != nil && e.ready
}

// ErrLeased is the error of the deletion of a leased block. It wraps ErrBusy.
var ErrLeased = fmt.Errorf("the block is leased: %w", errdefs.ErrBusy)

// Delete deletes a block, in memory and on disk. It returns ErrNotFound, ErrLeased, and ErrBusy for
// one that is not complete, or being written to disk or read from it.
func (s *Space) Delete(ctx context.Context, key block.Key) error {
	onDisk, err := s.deleteDisk(ctx, key)
	if err != nil {
		return err
	}
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	e := s.blocks[key]
	switch {
	case e == nil && onDisk:
		return nil
	case e == nil:
		return fmt.Errorf("delete block %s: %w", key, errdefs.ErrNotFound)
	case e.leases > 0:
		return fmt.Errorf("delete block %s: %w", key, ErrLeased)
	case !e.ready || e.write != nil:
		return fmt.Errorf("delete block %s: it is incomplete, or being written: %w", key, errdefs.ErrBusy)
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
	case e != nil && e.loading != nil:
		return nil, fmt.Errorf("write block %s, which is read from disk: %w", key, errdefs.ErrBusy)
	case e == nil:
		err := s.mayWrite()
		if err == nil {
			e, err = s.newEntry(key)
		}
		if err != nil {
			return nil, err
		}
	}
	at, found := slices.BinarySearchFunc(e.spans, w, func(a, b span) int { return int(a.from - b.from) })
	if found && e.spans[at] == (span{w.from, w.to, true}) && !e.checks { // the piece is sent again
		e.spans[at].complete = false
		e.got -= n
		e.use()
		return &Write{e, w}, nil
	}
	if found || at > 0 && e.spans[at-1].to > w.from || at < len(e.spans) && e.spans[at].from < w.to {
		return nil, fmt.Errorf("write %d bytes at %d of block %s, which another write has: %w", n, off, key, errdefs.ErrBusy)
	}
	e.spans = slices.Insert(e.spans, at, w)
	e.use()
	return &Write{e, w}, nil
}

// newEntry adds a block without bytes. The caller holds mu.
func (s *Space) newEntry(key block.Key) (*entry, error) {
	n := s.format.Layout.ImageBytes()
	m, err := s.h.alloc(s.t, n)
	if err != nil {
		return nil, err
	}
	e := &entry{space: s, key: key, memory: m, image: m.bytes[:n:n], at: inUse}
	s.blocks[key] = e
	return e, nil
}

// publish makes the block found. The caller holds mu.
func (e *entry) publish() {
	e.ready, e.spans = true, nil
	t := &e.space.t.usage
	t.Blocks, t.Bytes = t.Blocks+1, t.Bytes+int64(len(e.image))
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
		e.publish()
		e.space.t.usage.Stores++
		if e.space.disk != nil {
			e.enqueue()
		}
	}
	e.unuse()
	return err
}
