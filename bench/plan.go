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
)

// Layout says how the host's blocks lie; the device's are always scattered.
type Layout string

// The layouts of the host side.
const (
	HostContiguous Layout = "host contiguous"
	HostScattered  Layout = "host scattered"
)

// plan is one repetition of a point: block i goes between host block hostBlock[i] and device block devBlock[i].
type plan struct {
	size      int64
	dir       Direction
	layout    Layout
	hostBlock []uint32
	devBlock  []uint32
	devPool   []uint32 // a permutation of all the pool's blocks; devBlock is its start
	batches   []mem.Batch
}

// newPlan allocates a point's lists and batches; shuffle fills them in.
func newPlan(r *rig, o *Options, size int64, dir Direction, layout Layout) *plan {
	n := int(o.Bytes / size)
	p := &plan{size: size, dir: dir, layout: layout, hostBlock: identity(n), devPool: identity(int(o.PoolBytes / size))}
	p.devBlock = p.devPool[:n]
	perBatch := max(1, int(o.BatchBytes/size))
	for at := 0; at < n; at += perBatch {
		count := min(perBatch, n-at)
		if o.Paged {
			p.batches = append(p.batches, p.pagedBatch(r, count))
			continue
		}
		p.batches = append(p.batches, mem.Batch{Dst: make([]mem.Extent, count), Src: make([]mem.Extent, count)})
	}
	return p
}

func identity(n int) []uint32 {
	list := make([]uint32, n)
	for i := range list {
		list[i] = uint32(i)
	}
	return list
}

// pagedBatch returns a batch of one plane, whose pages are the device's blocks and whose slots the host's.
func (p *plan) pagedBatch(r *rig, count int) mem.Batch {
	pages, slots, dir := r.devDst, r.hostSrc, mem.ToPages
	if p.dir == ToHost {
		pages, slots, dir = r.devSrc, r.hostDst, mem.ToSlots
	}
	return mem.Batch{Paged: &mem.Paged{Dir: dir, Groups: []mem.PageGroup{{
		Planes: []mem.Plane{{Region: pages, Stride: p.size, Bytes: p.size}},
		Slots:  mem.Slots{Region: slots, Stride: p.size},
		Pairs:  make([]mem.PageSlot, count),
	}}}}
}

// shuffle scatters the blocks anew and writes the batches. It must not be called while they are being copied.
func (p *plan) shuffle(r *rig, rng *rand.Rand) {
	rng.Shuffle(len(p.devPool), func(i, j int) { p.devPool[i], p.devPool[j] = p.devPool[j], p.devPool[i] })
	if p.layout == HostScattered {
		rng.Shuffle(len(p.hostBlock), func(i, j int) { p.hostBlock[i], p.hostBlock[j] = p.hostBlock[j], p.hostBlock[i] })
	}
	at := 0
	for i := range p.batches {
		b := &p.batches[i]
		if b.Paged != nil {
			pairs := b.Paged.Groups[0].Pairs
			for j := range pairs {
				pairs[j] = mem.PageSlot{Page: p.devBlock[at], Slot: p.hostBlock[at]}
				at++
			}
			continue
		}
		for j := range b.Dst {
			host := mem.Extent{Region: r.hostSrc, Off: p.hostOff(at), Len: p.size}
			dev := mem.Extent{Region: r.devDst, Off: p.devOff(at), Len: p.size}
			b.Dst[j], b.Src[j] = dev, host
			if p.dir == ToHost {
				host.Region, dev.Region = r.hostDst, r.devSrc
				b.Dst[j], b.Src[j] = host, dev
			}
			at++
		}
	}
}

func (p *plan) hostOff(i int) int64 { return int64(p.hostBlock[i]) * p.size }
func (p *plan) devOff(i int) int64  { return int64(p.devBlock[i]) * p.size }

// devSpan is how much of the device's pool blocks may lie in.
func (p *plan) devSpan() int64 { return int64(len(p.devPool)) * p.size }

// bytes is what one repetition moves.
func (p *plan) bytes() int64 { return int64(len(p.hostBlock)) * p.size }
