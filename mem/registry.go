package mem

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvlane/kvlane/errdefs"
)

// Registry finds the Region that an address lies in. CPU addresses form one space, the addresses of every device one
// more each; a region may be in two spaces, and regions overlap in none. The zero value is ready. Safe for concurrent
// use: a lookup takes no lock and allocates nothing, a change copies the table, since memory is registered seldom and
// looked up at every call.
type Registry struct {
	mu    sync.Mutex // serialises changes
	table atomic.Pointer[[]span]
}

// cpuSpace is the space of CPU addresses; space d is that of device d, and NoDevice that of pinned memory of no device.
const cpuSpace = NoDevice - 1

// span is a region in one address space. A table of them is sorted by space, then address.
type span struct {
	space  int
	first  Addr
	region *Region
}

func (s span) end() Addr { return s.first + Addr(s.region.len) }

func spansOf(r *Region) []span {
	var s []span
	if r.cpu != 0 {
		s = append(s, span{cpuSpace, r.cpu, r})
	}
	if r.dev != 0 {
		s = append(s, span{r.device, r.dev, r})
	}
	return s
}

// before counts the spans of t that start at or before addr in space.
func before(t []span, space int, addr Addr) int {
	i, found := slices.BinarySearchFunc(t, addr, func(s span, addr Addr) int {
		if c := cmp.Compare(s.space, space); c != 0 {
			return c
		}
		return cmp.Compare(s.first, addr)
	})
	if found {
		return i + 1
	}
	return i
}

func (g *Registry) spans() []span {
	if t := g.table.Load(); t != nil {
		return *t
	}
	return nil
}

// Add makes r findable. ErrExists where a region in the registry overlaps it in either address space; nothing changes then.
func (g *Registry) Add(r *Region) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := slices.Clone(g.spans())
	for _, s := range spansOf(r) {
		i := before(t, s.space, s.first)
		if i > 0 && t[i-1].space == s.space && t[i-1].end() > s.first {
			return fmt.Errorf("register %s: it overlaps the %s: %w", r, t[i-1].region, errdefs.ErrExists)
		}
		if i < len(t) && t[i].space == s.space && t[i].first < s.end() {
			return fmt.Errorf("register %s: it overlaps the %s: %w", r, t[i].region, errdefs.ErrExists)
		}
		t = slices.Insert(t, i, s)
	}
	g.table.Store(&t)
	return nil
}

// Remove makes r unfindable. A lookup that runs at the same time may still find it. ErrNotFound where it is not there.
func (g *Registry) Remove(r *Region) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.spans()
	t := slices.DeleteFunc(slices.Clone(old), func(s span) bool { return s.region == r })
	if len(t) == len(old) {
		return fmt.Errorf("unregister %s: %w", r, errdefs.ErrNotFound)
	}
	g.table.Store(&t)
	return nil
}

// Len returns the number of regions.
func (g *Registry) Len() int {
	n := 0
	for _, s := range g.spans() {
		// A pinned region is there twice; its device span is the one that does not count.
		if s.space == cpuSpace || s.region.cpu == 0 {
			n++
		}
	}
	return n
}

// CPU returns the extent of bytes bytes from CPU address addr, which may lie anywhere inside a region. ErrNotFound where
// no region has the address, ErrInvalid where the extent reaches beyond the region that does.
func (g *Registry) CPU(addr Addr, bytes int64) (Extent, error) {
	return g.find(cpuSpace, addr, bytes)
}

// Dev is CPU for an address as a device sees it; device is what Region.Device answers.
func (g *Registry) Dev(device int, addr Addr, bytes int64) (Extent, error) {
	if device < NoDevice {
		return Extent{}, fmt.Errorf("find address %#x on device %d: %w", uint64(addr), device, errdefs.ErrInvalid)
	}
	return g.find(device, addr, bytes)
}

func (g *Registry) find(space int, addr Addr, bytes int64) (Extent, error) {
	t := g.spans()
	i := before(t, space, addr)
	if i == 0 || t[i-1].space != space || addr >= t[i-1].end() {
		where := "CPU"
		if space != cpuSpace {
			where = fmt.Sprintf("device %d", space)
		}
		return Extent{}, fmt.Errorf("find %s address %#x: no registered region has it: %w", where, uint64(addr), errdefs.ErrNotFound)
	}
	e := Extent{Region: t[i-1].region, Off: int64(addr - t[i-1].first), Len: bytes}
	if err := e.Validate(); err != nil {
		return Extent{}, err
	}
	return e, nil
}
