package bench

import (
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

// Direction is the direction of a copy.
type Direction string

// Directions of copies.
const (
	ToDevice Direction = "h2d"
	ToHost   Direction = "d2h"
	// both directions concurrently, each with its own stream; results are sums
	Both Direction = "both"
)

// Layout is the arrangement of blocks in memory. Blocks on the device are scattered, except with
// BothContiguous.
type Layout string

// hostLayouts are the arrangements for copies between host and device.
var hostLayouts = []Layout{HostContiguous, HostScattered, HostSlots}

// Arrangements of host memory, and of the memory of both devices.
const (
	HostContiguous Layout = "host contiguous"
	HostScattered  Layout = "host scattered"
	// HostSlots is the arrangement in a store: scattered slots, each with the image of a block. The
	// blocks of a point are contiguous pieces of a slot. Paged batches have one plane for each
	// piece of an image.
	HostSlots      Layout = "host slots"
	BothScattered  Layout = "both scattered"
	BothContiguous Layout = "both contiguous"
)

// Form is the form of a batch.
type Form string

// Forms of batches.
const (
	Lists Form = "extents" // list of pairs of extents
	Pages Form = "pages"   // list of page numbers: mem.Paged
	// list of page numbers, with checksums: mem.Paged.Sums
	PagesSummed Form = "pages with checksums"
)

// plan is the list of batches of a point in one direction.
type plan struct {
	measure.Blocks
	dir      Direction // ToDevice or ToHost
	dst, src *side
	dstSpan  int64 // length of the part of the destination that contains blocks
}

// newPlan allocates the lists for a cell: the fewest batches of at most most blocks, of similar
// length.
func (b *bench) newPlan(f Form, most int, c Cell, dir Direction, layout Layout) *plan {
	p := &plan{dir: dir}
	p.dst, p.src = b.rig.ends(dir)
	s := measure.Shape{
		Dir: mem.ToPages, Near: p.dst.dst, Far: p.src.src, Size: c.Size, Row: b.o.row(layout, c.Size), Count: c.Count, Most: most,
		Pages: f != Lists, Sums: f == PagesSummed, Scatter: layout != HostContiguous && layout != BothContiguous,
	}
	if dir == ToHost {
		s.Dir, s.Near, s.Far = mem.ToSlots, p.src.src, p.dst.dst
	}
	p.dstSpan = int64(c.Count) * c.Size
	if layout != BothContiguous {
		s.NearRows = b.pool(c.Size * int64(s.Row))
		if dir == ToDevice {
			p.dstSpan = s.Near.Len() / c.Size * c.Size
		}
	}
	p.Reset(s)
	return p
}
