package copy

import (
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// tableAlign is the alignment of descriptor tables: a cache line, so that no two launches share one.
const tableAlign = 64

// ring is pinned memory that descriptors are written to in order and that is given back in order. Positions count bytes
// since the start and never wrap; their remainder by the size is the place.
type ring struct {
	region   *mem.Region
	size     uint64
	maxChunk uint64 // longest span, a quarter of the ring, so that encoding overlaps with copying
	head     uint64 // end of what was taken
	tail     uint64 // start of what is not yet given back
}

func newRing(dev device.Device, bytes int64) (*ring, error) {
	bytes = int64(align(uint64(bytes), 4*tableAlign))
	r, err := dev.AllocHost(bytes)
	if err != nil {
		return nil, err
	}
	return &ring{region: r, size: uint64(bytes), maxChunk: uint64(bytes) / 4}, nil
}

// span is a part of the ring that one step may fill.
type span struct {
	buf []byte
	dev uint64 // device address of buf
	end uint64 // position to take and, later, to give back
}

// reserve returns a span of want bytes, or of maxChunk if that is less, without taking it. ok is false while that much
// is not free in one piece: some event has to be done first.
func (r *ring) reserve(want uint64) (sp span, ok bool) {
	want = min(align(want, tableAlign), r.maxChunk)
	start := r.head
	if toEnd := r.size - start%r.size; toEnd < want {
		start += toEnd
	}
	if start+want-r.tail > r.size {
		return span{}, false
	}
	at := start % r.size
	return span{
		buf: r.region.Bytes()[at : at+want : at+want],
		dev: uint64(r.region.Dev()) + at,
		end: start + want,
	}, true
}

// take makes positions up to end unavailable until they are given back.
func (r *ring) take(end uint64) { r.head = max(r.head, end) }

// giveBack frees positions up to end.
func (r *ring) giveBack(end uint64) { r.tail = max(r.tail, end) }

func align(n, to uint64) uint64 { return (n + to - 1) / to * to }
