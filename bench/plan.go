package bench

import (
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

// Direction is which way bytes go.
type Direction string

// The directions.
const (
	ToDevice Direction = "h2d"
	ToHost   Direction = "d2h"
	Both     Direction = "both" // both at once, each by a stream of its own; figures are of the sum
)

// Layout is the placement of blocks, how they lie. The device's are scattered but for BothContiguous.
type Layout string

// hostLayouts are those between host and device.
var hostLayouts = []Layout{HostContiguous, HostScattered, HostSlots}

// The placements: of the host's side, and of both sides between peers.
const (
	HostContiguous Layout = "host contiguous"
	HostScattered  Layout = "host scattered"
	// HostSlots is as a store's host memory is: slots that each hold the image of a block, in which the blocks of a point, pieces
	// of its pages, lie in a row; slots are scattered. Paged batches have one plane for each piece of an image.
	HostSlots      Layout = "host slots"
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

// plan is the batches of a point, one way.
type plan struct {
	measure.Blocks
	dir      Direction // ToDevice or ToHost
	dst, src *side
	dstSpan  int64 // how much of the destination blocks may lie in
}

// newPlan allocates the lists of a cell's blocks, in as few batches of at most most as that takes, of about the same length.
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
