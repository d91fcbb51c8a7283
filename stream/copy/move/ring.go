package move

import (
	"fmt"
	"sync/atomic"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream/copy/describe"
)

// space allocates memory that is released in order of allocation. Positions count bytes since the
// start and never wrap; a position modulo the size is an offset. One goroutine at a time allocates,
// and one releases.
type space struct {
	size    uint64
	maxSpan uint64        // a quarter of the memory, so that filling overlaps with copying
	head    uint64        // end of the allocated memory
	tail    atomic.Uint64 // start of the memory that is not released yet
}

// setSize sets the size to bytes, rounded up.
func (p *space) setSize(bytes int64) {
	p.size = describe.Align(uint64(bytes), 4*describe.TableAlign)
	p.maxSpan = p.size / 4
}

// reserve returns the offset of min(want, maxSpan) free bytes without allocating them, and the
// position of their end. ok is false if no contiguous range of that size is free; more may be free
// after the next event.
func (p *space) reserve(want uint64) (at, bytes, end uint64, ok bool) {
	bytes = min(describe.Align(want, describe.TableAlign), p.maxSpan)
	start := p.head
	if toEnd := p.size - start%p.size; toEnd < bytes {
		start += toEnd
	}
	if start+bytes-p.tail.Load() > p.size {
		return 0, 0, 0, false
	}
	return start % p.size, bytes, start + bytes, true
}

// take allocates the memory up to position end.
func (p *space) take(end uint64) { p.head = max(p.head, end) }

// giveBack releases the memory up to position end.
func (p *space) giveBack(end uint64) { p.tail.Store(max(p.tail.Load(), end)) }

// Ring is pinned memory for descriptors and for the results of kernels.
type Ring struct {
	space
	dev    device.Device
	descs  int
	region *mem.Region // nil before the first prepare
}

// NewRing returns a ring for the given number of descriptors. The first mover that needs the memory
// allocates it.
func NewRing(dev device.Device, descs int) *Ring {
	r := &Ring{dev: dev, descs: descs}
	r.setSize(int64(descs) * device.CopyDescBytes)
	return r
}

// prepare allocates the memory unless it is already allocated.
func (r *Ring) prepare() (err error) {
	if r.region != nil {
		return nil
	}
	if r.region, err = r.dev.AllocHost(int64(r.size)); err != nil {
		return fmt.Errorf("allocate %d descriptors: %w", r.descs, err)
	}
	return nil
}

// free releases the memory. It may be called again.
func (r *Ring) free() error {
	if r.region == nil {
		return nil
	}
	if err := r.dev.Free(r.region); err != nil {
		return fmt.Errorf("free descriptors: %w", err)
	}
	r.region = nil
	return nil
}

// span is the part of the ring that one step may fill.
type span struct {
	buf []byte
	dev mem.DevAddr // of buf
	end uint64      // position of its end
}

// start returns the position of the span's start.
func (sp *span) start() uint64 { return sp.end - uint64(len(sp.buf)) }

// reserve returns a span of min(want, maxSpan) bytes without allocating it. ok is false if that
// much is not free.
func (r *Ring) reserve(want uint64) (sp span, ok bool) {
	at, bytes, end, ok := r.space.reserve(want)
	if !ok {
		return span{}, false
	}
	return span{
		buf: r.region.Bytes()[at : at+bytes : at+bytes],
		dev: r.region.Dev() + mem.DevAddr(at),
		end: end,
	}, true
}
