package bench

import (
	"math/rand/v2"

	"github.com/kvlane/kvlane/mem"
)

// Direction is which way bytes go.
type Direction string

// The directions.
const (
	ToDevice Direction = "h2d"
	ToHost   Direction = "d2h"
	Both     Direction = "both" // both at once, each by a stream of its own; figures are of the sum
)

// Layout says how blocks lie. The device's are scattered but for BothContiguous.
type Layout string

// The layouts: of the host's side, and of both sides between peers.
const (
	HostContiguous Layout = "host contiguous"
	HostScattered  Layout = "host scattered"
	BothScattered  Layout = "both scattered"
	BothContiguous Layout = "both contiguous"
)

// Form is how a batch says what it copies.
type Form string

// The forms.
const (
	Lists       Form = "extents"              // a list of pairs of extents
	Pages       Form = "pages"                // a list of page numbers: mem.Paged
	PagesSummed Form = "pages with checksums" // the same, and the checksums of what passes: mem.Paged.Sums
)

// plan is the batches of a point, one way: block i goes between far block far[i] and near block near[i].
type plan struct {
	size      int64
	dir       Direction // ToDevice or ToHost
	layout    Layout
	dst, src  *side
	near, far []uint32
	pool      []uint32 // a permutation of all near blocks, of which a repetition has a part
	order     []uint32 // of n far blocks, from which a repetition begins somewhere

	dstList, srcList []mem.Extent
	pairs            []mem.PageSlot
	sums             []uint64

	most    int         // blocks of a batch
	batches []mem.Batch // of the first n blocks
	n       int
}

// newPlan allocates the lists of count blocks, in as few batches of at most most as that takes, of about the same length.
// The pool is a permutation of the near side's blocks, and has at least as many.
func newPlan(r *rig, f Form, most int, c Cell, dir Direction, layout Layout, pool []uint32) *plan {
	most = (c.Count + (c.Count-1)/most) / ((c.Count-1)/most + 1)
	p := &plan{size: c.Size, dir: dir, layout: layout, near: identity(c.Count), far: identity(c.Count), pool: pool, most: most}
	p.dst, p.src = r.ends(dir)
	p.batches = make([]mem.Batch, (c.Count+most-1)/most)
	if f == Lists {
		p.dstList, p.srcList = make([]mem.Extent, c.Count), make([]mem.Extent, c.Count)
		p.resize(c.Count)
		return p
	}
	p.pairs = make([]mem.PageSlot, c.Count)
	if f == PagesSummed {
		p.sums = make([]uint64, int64(c.Count)*p.leaves())
	}
	pages, slots, way := p.dst.dst, p.src.src, mem.ToPages
	if dir == ToHost {
		pages, slots, way = p.src.src, p.dst.dst, mem.ToSlots
	}
	for i := range p.batches {
		p.batches[i].Paged = &mem.Paged{Dir: way, Groups: []mem.PageGroup{{
			Planes: []mem.Plane{{Region: pages, Stride: c.Size, Bytes: c.Size}},
			Slots:  mem.Slots{Region: slots, Stride: c.Size},
		}}}
	}
	p.resize(c.Count)
	return p
}

func identity(n int) []uint32 {
	list := make([]uint32, n)
	for i := range list {
		list[i] = uint32(i)
	}
	return list
}

// leaves is how many checksums a block has.
func (p *plan) leaves() int64 { return p.size / mem.LeafBytes }

// resize makes the batches ones of the first n blocks together.
func (p *plan) resize(n int) {
	p.n, p.order = n, nil
	p.batches = p.batches[:(n+p.most-1)/p.most]
	for i := range p.batches {
		b, from, to := &p.batches[i], i*p.most, min((i+1)*p.most, n)
		if b.Paged == nil {
			b.Dst, b.Src = p.dstList[from:to], p.srcList[from:to]
			continue
		}
		b.Paged.Groups[0].Pairs = p.pairs[from:to]
		if p.sums != nil {
			b.Paged.Sums = p.sums[int64(from)*p.leaves() : int64(to)*p.leaves()]
		}
	}
}

// scatter takes other blocks in another order, or pairs them otherwise. It must not be called while they are being copied. It
// costs little beside a repetition: both orders are random, and made once; where they begin is drawn.
func (p *plan) scatter(rng *rand.Rand) {
	if p.layout == BothContiguous {
		return
	}
	rotate(p.near[:p.n], p.pool, rng)
	if p.layout == HostContiguous {
		return
	}
	if p.order == nil {
		p.order = permutation(p.n, rng)
	}
	rotate(p.far[:p.n], p.order, rng)
}

// rotate fills to with what follows a random place of from, which is at least as long.
func rotate(to, from []uint32, rng *rand.Rand) {
	n := copy(to, from[rng.IntN(len(from)):])
	copy(to[n:], from)
}

// permutation returns the numbers below n in random order.
func permutation(n int, rng *rand.Rand) []uint32 {
	list := identity(n)
	rng.Shuffle(n, func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// write writes the batches' lists: what a user who knows the block numbers does before Submit.
func (p *plan) write() {
	if p.pairs != nil {
		for i := range p.n {
			p.pairs[i] = mem.PageSlot{Page: p.near[i], Slot: p.far[i]}
		}
		return
	}
	dst, src := p.dst.dst, p.src.src
	dstBlock, srcBlock := p.blocks()
	for i := range p.n {
		p.dstList[i] = mem.Extent{Region: dst, Off: int64(dstBlock[i]) * p.size, Len: p.size}
		p.srcList[i] = mem.Extent{Region: src, Off: int64(srcBlock[i]) * p.size, Len: p.size}
	}
}

// blocks returns the numbers of the blocks at both ends.
func (p *plan) blocks() (dst, src []uint32) {
	if p.dir == ToDevice {
		return p.near, p.far
	}
	return p.far, p.near
}

func (p *plan) dstOff(i int) int64 {
	dst, _ := p.blocks()
	return int64(dst[i]) * p.size
}

func (p *plan) srcOff(i int) int64 {
	_, src := p.blocks()
	return int64(src[i]) * p.size
}

// dstSpan is how much of the destination blocks may lie in.
func (p *plan) dstSpan() int64 {
	if p.dir == ToDevice {
		return int64(len(p.pool)) * p.size
	}
	return int64(len(p.far)) * p.size
}

// bytes is what the batches move.
func (p *plan) bytes() int64 { return int64(p.n) * p.size }
