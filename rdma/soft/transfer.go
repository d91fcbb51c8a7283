package soft

import (
	"math"
	"math/bits"
	"sync/atomic"

	"github.com/kvlane/kvlane/mem"
)

// Transfer is what a Mover is asked to do at once.
type Transfer struct {
	// Batch is what to copy, as a list of extents or, where these are many and lie regularly, as a list of page numbers. It
	// is the mover's until it calls Done.
	Batch mem.Batch

	pieces   int // copies so far, as requests name them
	bytes    int64
	dst, src []mem.Extent
	grid     grid

	engine *engine
	err    error
	landed atomic.Bool
	read   bool    // of a single RDMA read; only with Options.Schedule
	items  []item  // which requests it is of, in order
	held   []*gate // what must not be closed before it has landed
}

// item is a run of requests of one queue pair, up to position end.
type item struct {
	qp  *qp
	end uint64
	// plain requests have nothing to complete but, if signaled, the last of them.
	plain, signaled bool
}

// Done ends the transfer. An error fails all of its requests: the mover need not say what of it has landed.
func (t *Transfer) Done(err error) {
	t.err = err
	e := t.engine // t is the engine's again once landed is set
	t.landed.Store(true)
	e.kick()
}

// add appends a copy.
func (t *Transfer) add(dst, src mem.Extent) {
	t.pieces++
	if t.pieces == 1 && t.grid.open(dst, src) || t.grid.fits(dst, src) {
		t.grid.add(dst, src)
		return
	}
	t.list()
	// Elements one by one: appending slices of one costs twice as much.
	t.dst, t.src = append(t.dst, dst), append(t.src, src)
}

// list makes a list of what is on the grid, if anything is.
func (t *Transfer) list() {
	if len(t.grid.pairs) == 0 {
		return
	}
	for i := range t.grid.pairs {
		dst, src := t.grid.at(i)
		t.dst, t.src = append(t.dst, dst), append(t.src, src)
	}
	t.grid.clear()
}

// fewPairs is up to how many pairs are given as a list: page numbers would save nothing.
const fewPairs = 64

// seal makes the batch.
func (t *Transfer) seal() {
	if len(t.grid.pairs) > fewPairs {
		t.Batch = mem.Batch{Paged: t.grid.seal()}
		return
	}
	t.list()
	t.Batch = mem.Batch{Dst: t.dst, Src: t.src}
}

// clear makes an empty transfer.
func (t *Transfer) clear() {
	clear(t.dst)
	clear(t.src)
	clear(t.items)
	clear(t.held)
	t.dst, t.src, t.items, t.held = t.dst[:0], t.src[:0], t.items[:0], t.held[:0]
	t.grid.clear()
	t.Batch = mem.Batch{}
	t.pieces, t.bytes, t.err, t.read = 0, 0, nil, false
	t.landed.Store(false)
}

// grid holds copies between two regions that are all of one length, a power of two, or a small multiple of it, and lie at
// multiples of it from a first place: as numbers, which are a sixth of the bytes of extents, and which a device reads as they
// are.
type grid struct {
	dst, src       *mem.Region
	dstOff, srcOff int64 // of number 0
	shift          int   // log2 of the length
	toSlots        bool  // the destination is the slots' side
	pairs          []mem.PageSlot

	paged  mem.Paged
	groups [1]mem.PageGroup
	planes [1]mem.Plane
}

// mostAtOnce is how many times the length of the first copy another may have.
const mostAtOnce = 16

// open reports whether the grid, which is empty, could be one that has this copy, and makes it so.
func (g *grid) open(dst, src mem.Extent) bool {
	n := uint64(dst.Len)
	shift := bits.TrailingZeros64(n)
	if n == 0 || n != 1<<shift || max(dst.Region.Len(), src.Region.Len())>>shift > math.MaxUint32 {
		return false
	}
	mask := dst.Len - 1
	g.dst, g.src, g.shift, g.dstOff, g.srcOff = dst.Region, src.Region, shift, dst.Off&mask, src.Off&mask
	// The host's side should be that of the slots: a stream looks at how these follow each other.
	g.toSlots = src.Region.Kind() == mem.KindDevice && dst.Region.Kind() != mem.KindDevice
	return true
}

// fits reports whether a copy lies on the grid.
func (g *grid) fits(dst, src mem.Extent) bool {
	return dst.Region == g.dst && src.Region == g.src &&
		((dst.Off-g.dstOff)|(src.Off-g.srcOff)|dst.Len)&(1<<g.shift-1) == 0 && dst.Len>>g.shift <= mostAtOnce
}

// add appends a copy that fits.
func (g *grid) add(dst, src mem.Extent) {
	page, slot := uint32((dst.Off-g.dstOff)>>g.shift), uint32((src.Off-g.srcOff)>>g.shift)
	if g.toSlots {
		page, slot = slot, page
	}
	n := uint32(dst.Len >> g.shift)
	for i := range n {
		g.pairs = append(g.pairs, mem.PageSlot{Page: page + i, Slot: slot + i})
	}
}

// seal returns the pairs as a page list, which is valid until clear.
func (g *grid) seal() *mem.Paged {
	size, dir := int64(1)<<g.shift, mem.ToPages
	pages, slots := mem.Plane{Region: g.dst, Base: g.dstOff}, mem.Slots{Region: g.src, Base: g.srcOff}
	if g.toSlots {
		dir = mem.ToSlots
		pages.Region, pages.Base, slots.Region, slots.Base = g.src, g.srcOff, g.dst, g.dstOff
	}
	pages.Stride, pages.Bytes, slots.Stride = size, size, size
	g.planes[0] = pages
	g.groups[0] = mem.PageGroup{Planes: g.planes[:], Slots: slots, Pairs: g.pairs}
	g.paged = mem.Paged{Dir: dir, Groups: g.groups[:]}
	return &g.paged
}

// at returns copy i.
func (g *grid) at(i int) (dst, src mem.Extent) {
	n := int64(1) << g.shift
	to, from := g.pairs[i].Page, g.pairs[i].Slot
	if g.toSlots {
		to, from = from, to
	}
	return mem.Extent{Region: g.dst, Off: g.dstOff + int64(to)<<g.shift, Len: n}, mem.Extent{Region: g.src, Off: g.srcOff + int64(from)<<g.shift, Len: n}
}

// clear makes an empty grid that nothing fits.
func (g *grid) clear() {
	g.dst, g.src, g.pairs = nil, nil, g.pairs[:0]
	g.paged, g.groups, g.planes = mem.Paged{}, [1]mem.PageGroup{}, [1]mem.Plane{}
}
