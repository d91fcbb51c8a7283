package bench

import (
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

// Direction is the direction of a copy.
type Direction string

// The directions.
const (
	ToDevice Direction = "h2d"
	ToHost   Direction = "d2h"
	Both     Direction = "both" // both at once, each by its own stream; figures are sums
)

// Layout is an arrangement of blocks in memory. Blocks on the device are scattered except in
// BothContiguous.
type Layout string

// hostLayouts are the arrangements between host and device.
var hostLayouts = []Layout{HostContiguous, HostScattered, HostSlots}

// Arrangements of the host side, and of both sides between peers.
const (
	HostContiguous Layout = "host contiguous"
	HostScattered  Layout = "host scattered"
	// HostSlots is the arrangement in a store: scattered slots that each hold the image of a block.
	// The blocks of a point are pieces of its pages and contiguous in a slot. Paged batches have
	// one plane for each piece of an image.
	HostSlots      Layout = "host slots"
	BothScattered  Layout = "both scattered"
	BothContiguous Layout = "both contiguous"
)

// Form is the form of a batch.
type Form string

// The forms.
const (
	Lists       Form = "extents"              // a list of pairs of extents
	Pages       Form = "pages"                // a list of page numbers: mem.Paged
	PagesSummed Form = "pages with checksums" // the same with checksums: mem.Paged.Sums
)

// plan is the batches of a point in one direction.
type plan struct {
	measure.Blocks
	dir      Direction // ToDevice or ToHost
	dst, src *side
	dstSpan  int64 // length of the destination that may hold blocks
}

// newPlan allocates the lists of a cell's blocks: the fewest batches of at most most blocks, of
// about equal length.
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
