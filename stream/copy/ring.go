package copy

import (
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// tableAlign is the alignment of descriptor tables: a cache line, so that no two launches share one.
const tableAlign = 64

// positions is memory that is taken in order and given back in order. Positions count bytes since the start and never
// wrap; their remainder by the size is the place.
type positions struct {
	size     uint64
	maxChunk uint64 // longest span, a quarter of the memory, so that filling overlaps with copying
	head     uint64 // end of what was taken
	tail     uint64 // start of what is not yet given back
}

// newPositions is for memory of so many bytes, a multiple of four times tableAlign.
func newPositions(bytes int64) *positions {
	return &positions{size: uint64(bytes), maxChunk: uint64(bytes) / 4}
}

// reserve returns the place of want bytes, or of maxChunk if that is less, without taking them, and the position of their
// end. ok is false while that much is not free in one piece: some event has to be done first.
func (p *positions) reserve(want uint64) (at, bytes, end uint64, ok bool) {
	bytes = min(align(want, tableAlign), p.maxChunk)
	start := p.head
	if toEnd := p.size - start%p.size; toEnd < bytes {
		start += toEnd
	}
	if start+bytes-p.tail > p.size {
		return 0, 0, 0, false
	}
	return start % p.size, bytes, start + bytes, true
}

// take makes positions up to end unavailable until they are given back.
func (p *positions) take(end uint64) { p.head = max(p.head, end) }

// giveBack frees positions up to end.
func (p *positions) giveBack(end uint64) { p.tail = max(p.tail, end) }

// ring is pinned memory for descriptors, and for what kernels have to say about them.
type ring struct {
	positions
	region *mem.Region
}

// newRing allocates a ring of so many bytes, a multiple of four times tableAlign.
func newRing(dev device.Device, bytes int64) (*ring, error) {
	r, err := dev.AllocHost(bytes)
	if err != nil {
		return nil, err
	}
	return &ring{region: r, positions: *newPositions(bytes)}, nil
}

// span is what one step may fill: a part of the ring, and of staging memory.
type span struct {
	buf   []byte
	dev   mem.DevAddr // of buf
	end   uint64      // position to take and, later, to give back
	stage stageSpan
}

// reserve returns a span of want bytes, or of maxChunk if that is less, without taking it.
func (r *ring) reserve(want uint64) (sp span, ok bool) {
	at, bytes, end, ok := r.positions.reserve(want)
	if !ok {
		return span{}, false
	}
	return span{
		buf: r.region.Bytes()[at : at+bytes : at+bytes],
		dev: r.region.Dev() + mem.DevAddr(at),
		end: end,
	}, true
}

func align(n, to uint64) uint64 { return (n + to - 1) / to * to }
