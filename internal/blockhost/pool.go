package blockhost

import (
	"container/heap"
	"errors"
	"fmt"
	"math/bits"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// memory is the memory of one image. Its length is a size class.
type memory struct {
	bytes  []byte
	region *mem.Region // over bytes
}

// classBytes returns the length of memory for n bytes: images of similar lengths share memory, and
// at most an eighth of it is not used.
func classBytes(n int64) int64 {
	step := max(int64(4096), 1<<max(bits.Len64(uint64(n))-4, 0))
	return (n + step - 1) / step * step
}

// alloc returns memory for an image of the tenant. It returns ErrBusy if all memory is in use. The
// caller holds mu.
func (h *Host) alloc(t *tenant, image int64) (*memory, error) {
	n := classBytes(image)
	most := h.tenantBytes(t.name)
	for t.used+n > most {
		if !h.evict(t) {
			return nil, fmt.Errorf("find %d bytes: all %d of the tenant are in use: %w", n, most, errdefs.ErrBusy)
		}
	}
	for len(h.free[n]) == 0 && h.used+n > h.o.CapacityBytes {
		if h.evict(nil) && len(h.free[n]) > 0 {
			break
		}
		before := h.used // memory of other lengths makes space
		if err := h.freeUnused(); err != nil {
			return nil, err
		}
		if h.used == before {
			return nil, fmt.Errorf("find %d bytes: all %d are in use: %w", n, h.o.CapacityBytes, errdefs.ErrBusy)
		}
	}
	if list := h.free[n]; len(list) > 0 {
		m := list[len(list)-1]
		h.free[n] = list[:len(list)-1]
		t.used += n
		return m, nil
	}
	b, err := hostmem.Alloc(n)
	if err != nil {
		return nil, err
	}
	r, err := hostmem.Region(b)
	if err != nil {
		return nil, errors.Join(err, hostmem.Free(b))
	}
	h.used += n
	t.used += n
	return &memory{b, r}, nil
}

// freeUnused returns free memory to the system. The caller holds mu.
func (h *Host) freeUnused() error {
	for n, all := range h.free {
		for len(all) > 0 {
			if err := hostmem.Free(all[len(all)-1].bytes); err != nil {
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

// evict makes the memory of the block of least value free, of one tenant or of all if t is nil. It
// reports whether there is a block that is not in use. The caller holds mu.
func (h *Host) evict(t *tenant) bool {
	if t == nil {
		for _, other := range h.tenants {
			if len(other.cold) > 0 && (t == nil || other.cold[0].colder(t.cold[0])) {
				t = other
			}
		}
	}
	if t == nil || len(t.cold) == 0 {
		return false
	}
	e := t.cold[0]
	h.age = max(h.age, e.value)
	if e.ready {
		t.usage.Evictions++
	}
	e.drop()
	return true
}

// setUsed gives a block its value, by GreedyDual-Size: the value of the block that was evicted
// last, and the cost of bringing the block back for each of its bytes. A read has a constant cost,
// as that of 64 KiB. The caller holds mu.
func (e *entry) setUsed() {
	h := e.space.h
	h.uses++
	e.used, e.value = h.uses, h.age+1+float64(64<<10)/float64(len(e.image))
}

// coldest is a heap of the blocks that are not in use, that of least value first.
type coldest []*entry

func (e *entry) colder(o *entry) bool {
	return e.value < o.value || e.value == o.value && e.used < o.used
}

// Len implements heap.Interface.
func (c coldest) Len() int { return len(c) }

// Less implements heap.Interface.
func (c coldest) Less(i, j int) bool { return c[i].colder(c[j]) }

// Swap implements heap.Interface.
func (c coldest) Swap(i, j int) {
	c[i], c[j] = c[j], c[i]
	c[i].at, c[j].at = i, j
}

// Push implements heap.Interface.
func (c *coldest) Push(x any) {
	e, _ := x.(*entry)
	e.at = len(*c)
	*c = append(*c, e)
}

// Pop implements heap.Interface.
func (c *coldest) Pop() any {
	old := *c
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*c = old[:len(old)-1]
	e.at = inUse
	return e
}

// use begins a use of the block. The caller holds mu.
func (e *entry) use() {
	if e.users++; e.at != inUse {
		heap.Remove(&e.space.t.cold, e.at)
	}
	e.setUsed()
}

// unuse ends a use. The caller holds mu.
func (e *entry) unuse() {
	if e.users--; e.users > 0 {
		return
	}
	if e.gone {
		e.drop()
		return
	}
	heap.Push(&e.space.t.cold, e)
}
