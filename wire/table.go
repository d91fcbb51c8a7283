package wire

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// Table maps addresses to registered regions, which do not overlap.
type Table struct {
	mover *Mover

	mu    sync.Mutex
	spans []*span // by address
}

// span is a registered region at an address.
type span struct {
	at      uint64
	region  *mem.Region
	holders []*Lease      // without duplicates
	removed bool          // Remove was called; lookups do not find it
	idle    chan struct{} // closed when it is removed and has no holders
}

func (s *span) end() uint64 { return s.at + uint64(s.region.Len()) }

// NewTable returns an empty table. Mover m moves the bytes of its regions.
func NewTable(m *Mover) *Table { return &Table{mover: m} }

// Add registers r at address at. It returns ErrExists if the range overlaps another region,
// ErrInvalid if it exceeds the address space, and ErrNotSupported for memory that the table's Mover
// does not move.
func (t *Table) Add(at uint64, r *mem.Region) error {
	if err := t.mover.Moves(r); err != nil {
		return fmt.Errorf("register memory: %w", err)
	}
	if at > math.MaxUint64-uint64(r.Len()) {
		return fmt.Errorf("register %s at %#x: it ends beyond the last address: %w", r, at, errdefs.ErrInvalid)
	}
	s := &span{at: at, region: r, idle: make(chan struct{})}
	t.mu.Lock()
	defer t.mu.Unlock()
	i := t.indexAfter(at)
	if i > 0 && t.spans[i-1].end() > at || i < len(t.spans) && t.spans[i].at < s.end() {
		return fmt.Errorf("register %s at %#x: overlaps registered memory: %w", r, at, errdefs.ErrExists)
	}
	t.spans = slices.Insert(t.spans, i, s)
	return nil
}

// indexAfter returns the index of the first span that begins after at.
func (t *Table) indexAfter(at uint64) int {
	i, _ := slices.BinarySearchFunc(t.spans, at, func(s *span, at uint64) int {
		if s.at > at {
			return 1
		}
		return -1
	})
	return i
}

// Remove removes the region at address at. Lookups no longer find it, and Remove waits until its
// holders have released it. If ctx ends first, the memory is still in use and Remove may be called
// again. It returns ErrNotFound if there is no region.
func (t *Table) Remove(ctx context.Context, at uint64) error {
	t.mu.Lock()
	i := t.indexAfter(at) - 1
	if i < 0 || t.spans[i].at != at {
		t.mu.Unlock()
		return fmt.Errorf("unregister memory at %#x: %w", at, errdefs.ErrNotFound)
	}
	s := t.spans[i]
	if !s.removed {
		s.removed = true
		if len(s.holders) == 0 {
			close(s.idle)
		}
	}
	t.mu.Unlock()
	select {
	case <-s.idle:
	case <-ctx.Done():
		select {
		case <-s.idle: // released at the same time
		default:
			return fmt.Errorf("unregister memory at %#x: it is in use: %w", at, context.Cause(ctx))
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spans = slices.DeleteFunc(t.spans, func(other *span) bool { return other == s })
	return nil
}

// End asks the holders of the region at address at to release it soon. It does not wait.
func (t *Table) End(at uint64) {
	for _, h := range t.holders(at) {
		if h.end != nil {
			h.end()
		}
	}
}

func (t *Table) holders(at uint64) []*Lease {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := t.indexAfter(at) - 1
	if i < 0 || t.spans[i].at != at {
		return nil
	}
	return slices.Clone(t.spans[i].holders)
}

// find returns the span with n bytes at address at. The caller holds mu.
func (t *Table) find(at uint64, n int64) (*span, error) {
	i := t.indexAfter(at) - 1
	if n < 0 || i < 0 || t.spans[i].removed || at-t.spans[i].at > uint64(t.spans[i].region.Len()) ||
		uint64(n) > t.spans[i].end()-at {
		return nil, fmt.Errorf("%d bytes at %#x are not registered: %w", n, at, errdefs.ErrNotFound)
	}
	return t.spans[i], nil
}

// Check returns ErrNotFound unless the n bytes at address at are inside one registered region, and
// ErrLost if the memory of that region is lost.
func (t *Table) Check(at uint64, n int64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := t.find(at, n)
	if err != nil {
		return err
	}
	return s.region.Origin().Lost()
}

// Send calls Mover.Send with the n bytes at address at. If it returns ErrNotFound, nothing was
// sent.
func (t *Table) Send(ctx context.Context, w io.Writer, at uint64, n int64) error {
	h := Lease{table: t}
	defer h.Release()
	if err := h.Add(at, n); err != nil {
		return err
	}
	return t.mover.Send(ctx, w, h.List)
}

// Receive calls Mover.Receive with the n bytes at address at. If it returns ErrNotFound, nothing
// was received.
func (t *Table) Receive(ctx context.Context, r io.Reader, at uint64, n int64) error {
	h := Lease{table: t}
	defer h.Release()
	if err := h.Add(at, n); err != nil {
		return err
	}
	return t.mover.Receive(ctx, r, h.List)
}

// Lease keeps memory of a table registered until Release. It is not safe for concurrent use.
type Lease struct {
	List  []mem.Extent // added extents; adjacent ones are merged
	table *Table
	spans []*span // by address, without duplicates
	last  *span   // the span used last
	end   func()
}

// NewLease returns an empty Lease. It may be reused after Release. end, if not nil, asks the holder
// to release it soon; it may be called at any time from any goroutine.
func (t *Table) NewLease(end func()) *Lease { return &Lease{table: t, end: end} }

// Add keeps the n bytes at address at registered and appends them to List. It may return
// ErrNotFound.
func (h *Lease) Add(at uint64, n int64) error {
	s, err := h.keep(at, n)
	if err != nil {
		return err
	}
	h.List = Append(h.List, mem.Extent{Region: s.region, Off: int64(at - s.at), Len: n})
	return nil
}

// Keep keeps the n bytes at address at registered. It may return ErrNotFound.
func (h *Lease) Keep(at uint64, n int64) error {
	_, err := h.keep(at, n)
	return err
}

// keep returns the span with the bytes and adds h to its holders. A request may have a million
// pieces, mostly in one span, so keep takes no lock if h already holds the span.
func (h *Lease) keep(at uint64, n int64) (*span, error) {
	if s := h.last; s != nil && s.has(at, n) {
		return s, nil
	}
	i, _ := slices.BinarySearchFunc(h.spans, at, func(s *span, at uint64) int {
		if s.at > at {
			return 1
		}
		return -1
	})
	if i > 0 && h.spans[i-1].has(at, n) {
		h.last = h.spans[i-1]
		return h.last, nil
	}
	t := h.table
	t.mu.Lock()
	s, err := t.find(at, n)
	if err == nil {
		s.holders = append(s.holders, h)
	}
	t.mu.Unlock()
	if err != nil {
		return nil, err
	}
	h.spans, h.last = slices.Insert(h.spans, i, s), s
	return s, nil
}

// has reports whether the n bytes at address at are inside the span.
func (s *span) has(at uint64, n int64) bool {
	return at >= s.at && n >= 0 && at-s.at <= uint64(s.region.Len()) && uint64(n) <= s.end()-at
}

// Append appends e to the list, or extends the last extent if e follows it.
func Append(list []mem.Extent, e mem.Extent) []mem.Extent {
	if k := len(list); k > 0 {
		if last := &list[k-1]; last.Region == e.Region && last.Off+last.Len == e.Off {
			last.Len += e.Len
			return list
		}
	}
	return append(list, e)
}

// Release releases all memory that was added.
func (h *Lease) Release() {
	h.table.mu.Lock()
	for _, s := range h.spans {
		i := slices.Index(s.holders, h)
		if s.holders = slices.Delete(s.holders, i, i+1); len(s.holders) == 0 && s.removed {
			close(s.idle)
		}
	}
	h.table.mu.Unlock()
	h.List, h.spans, h.last = h.List[:0], h.spans[:0], nil
}
