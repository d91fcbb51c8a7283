package sim

import (
	"fmt"
	"os"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/kvlane/kvlane/mem"
)

const (
	// firstAddr has bits 47 to 63 neither all clear nor all set, so that on machines with 48-bit
	// addresses an access always faults, regardless of the mappings.
	firstAddr = 0x0d00_0000_0000_0000
	// indexShift separates the address ranges of the devices of a process.
	indexShift = 50
	// alignment is the alignment of every allocation. guard is the minimum distance between two
	// allocations.
	alignment = 1 << 16
	guard     = 1 << 20
	// tombstones is the number of freed spans that are kept, so that errors can report a use after
	// free.
	tombstones = 1024
)

// span is one allocation or registration, in the device's view.
type span struct {
	base  mem.DevAddr
	len   int64
	bytes []byte // the memory; nil after it was freed
	kind  mem.Kind
	owned bool // the device mapped bytes; otherwise the caller of RegisterHost did
	// fd is the file that backs bytes if they are shareable, or -1.
	fd       int
	imported bool // the memory belongs to another process
	region   *mem.Region
}

// space is the device's address space.
type space struct {
	// mu is held for reading while the bytes of a span are accessed, and for writing to add or free
	// a span.
	mu    sync.RWMutex
	index int // of the device
	reach atomic.Pointer[reach]
	next  mem.DevAddr
	spans []*span // ascending by base, including freed spans
	freed int
}

func newSpace(index int) *space {
	s := &space{index: index, next: firstAddr + mem.DevAddr(index)<<indexShift}
	s.reach.Store(&reach{s})
	return s
}

// reserve returns the address for n bytes at CPU address cpu, which may be zero. Both addresses
// have the same offset within a page. Addresses only ascend, so that none is used twice.
func (s *space) reserve(n int64, cpu mem.CPUAddr) mem.DevAddr {
	s.mu.Lock()
	defer s.mu.Unlock()
	off := mem.DevAddr(cpu) % mem.DevAddr(os.Getpagesize())
	a := s.next + off
	s.next += (mem.DevAddr(n)+off+alignment-1)&^(alignment-1) + guard
	return a
}

// add adds a span. Spans may be added in another order than their addresses were reserved. If host
// memory overlaps that of a live span, add does nothing and returns that span.
func (s *space) add(sp *span) (other *span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cpu := sp.region.CPU(); cpu != 0 {
		for _, o := range s.spans {
			if c := o.region.CPU(); o.bytes != nil && c != 0 && c < cpu+mem.CPUAddr(sp.len) && cpu < c+mem.CPUAddr(o.len) {
				return o
			}
		}
	}
	if sp.base < firstAddr {
		s.bury(sp) // needed with Options.HostAddresses
	}
	i := sort.Search(len(s.spans), func(i int) bool { return s.spans[i].base > sp.base })
	s.spans = slices.Insert(s.spans, i, sp)
	return nil
}

// bury removes freed spans at the addresses of sp. The caller holds mu for writing.
func (s *space) bury(sp *span) {
	before := len(s.spans)
	s.spans = slices.DeleteFunc(s.spans, func(o *span) bool {
		return o.bytes == nil && o.base < sp.base+mem.DevAddr(sp.len) && sp.base < o.base+mem.DevAddr(o.len)
	})
	s.freed -= before - len(s.spans)
}

// find returns the live or freed span that contains addr, or nil. The caller holds mu.
func (s *space) find(addr mem.DevAddr) *span {
	lo, hi := 0, len(s.spans)
	for lo < hi { // not sort.Search: this is the inner loop of kernels with scattered pieces
		mid := int(uint(lo+hi) >> 1)
		if s.spans[mid].base <= addr {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return nil
	}
	if sp := s.spans[lo-1]; addr-sp.base < mem.DevAddr(sp.len) {
		return sp
	}
	return nil
}

// of returns the live span of r, or nil. The caller holds mu.
func (s *space) of(r *mem.Region) *span {
	if sp := s.find(r.Dev()); sp != nil && sp.region == r && sp.bytes != nil {
		return sp
	}
	return nil
}

// holds reports whether all of r is live memory. Like drivers, it compares addresses, because r may
// be a region of another kind in an allocation, such as a KV cache in pinned memory. The caller
// holds mu.
func (s *space) holds(r *mem.Region) bool {
	sp := s.find(r.Dev())
	return sp != nil && sp.bytes != nil && r.Dev()-sp.base+mem.DevAddr(r.Len()) <= mem.DevAddr(sp.len)
}

// kill turns sp into a tombstone. The caller holds mu for writing.
func (s *space) kill(sp *span) {
	sp.bytes = nil
	if s.freed++; s.freed > tombstones && s.freed > len(s.spans)/2 {
		s.spans = slices.DeleteFunc(s.spans, func(sp *span) bool { return sp.bytes == nil })
		s.freed = 0
	}
}

// live returns the spans that are not freed. The caller holds mu.
func (s *space) live() []*span {
	var l []*span
	for _, sp := range s.spans {
		if sp.bytes != nil {
			l = append(l, sp)
		}
	}
	return l
}

// explain returns the reason why n bytes at addr cannot be accessed. The caller holds mu.
func (s *space) explain(addr mem.DevAddr, n uint64) string {
	sp := s.find(addr)
	switch {
	case sp == nil:
		return "no allocation holds this address"
	case sp.bytes == nil:
		return fmt.Sprintf("use after free: the %d bytes at %#x were freed", sp.len, sp.base)
	default:
		return fmt.Sprintf("%d bytes from byte %d of an allocation of %d", n, addr-sp.base, sp.len)
	}
}

// fill sets every byte of b to v.
func fill(b []byte, v byte) {
	const block = 32 << 10
	head := b[:min(len(b), block)]
	for i := range head {
		head[i] = v
	}
	for done := len(head); done < len(b); {
		done += copy(b[done:], head)
	}
}
