package describe

import (
	"math"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// pages writes planes and then pairs of the current group, and leaves space for their sums. It
// writes all planes if they leave space for the remaining pairs or fill at most half of the table,
// and otherwise as many planes as that allows. It writes as many pairs as fit. Planes that do not
// fit are copied in another pass over the pairs. All launches of a pass have the same planes.
func (c *Cursor) pages(t *Table, k *device.Kernel) (used uint64) {
	p := c.Batch.Paged
	g := &p.Groups[c.group]
	pairs := g.Pairs[c.pair:]
	planes := g.Planes[c.plane:]
	available := t.planeSpace(len(pairs))
	if c.pair > 0 {
		planes, available = planes[:c.planes], len(t.Buf)
	}
	ps := t.describePlanes(t.Buf[:max(available, 0)], planes, c.pair > 0)
	if ps.n == 0 || c.pair > 0 && ps.n < c.planes {
		return 0
	}
	at := int(Align(uint64(ps.n*t.planeBytes()), TableAlign))
	n := t.pairsThatFit(len(t.Buf)-at, ps.leaves)
	if t.Limit < math.MaxInt64 && ps.bytes > 0 {
		n = min(n, max(1, int(t.Limit/ps.bytes)))
	}
	if t.Left > 0 {
		n = min(n, int(c.share(int64(len(pairs)), firstPairs, pairsGrowth)))
	}
	if n = min(n, len(pairs)); n <= 0 {
		return 0
	}
	// The kernel reads pairs in their form in memory: page and slot, of 32 bits each, little-endian
	// like all hosts of CUDA.
	copy(t.Buf[at:], hostmem.Bytes(pairs[:n]))
	used = uint64(at + n*device.PairBytes)

	args, name := device.PagedArgs{
		Planes: t.Dev, NPlanes: uint64(ps.n), Pairs: t.Dev + mem.DevAddr(at), NPairs: uint64(n),
		Slots: g.Slots.Region.Dev() + mem.DevAddr(g.Slots.Base), SlotStride: uint64(g.Slots.Stride), Direction: uint64(p.Dir),
	}, device.KernelCopyPaged
	if t.summed {
		used = Align(used, TableAlign)
		args.Sums, name = t.Dev+mem.DevAddr(used), device.KernelCopyPagedSum
		t.Rows = c.rows(g, ps.leaves, n, used)
		used += uint64(n*ps.leaves) * sumBytes
	}
	*k = args.Kernel(name, ps.units*n)
	t.Bytes = ps.bytes * int64(n)
	c.pass(g, ps.n, n)
	return used
}

// pass advances by a number of pairs in a pass with this number of planes.
func (c *Cursor) pass(g *mem.PageGroup, planes, pairs int) {
	c.planes = planes
	if c.pair += pairs; c.pair < len(g.Pairs) {
		return
	}
	c.pair, c.plane = 0, c.plane+planes
	if c.plane == len(g.Planes) {
		c.sums += leavesOf(g.Planes) * len(g.Pairs)
		c.group, c.plane = c.group+1, 0
	}
}

func (t *Table) planeBytes() int {
	if t.summed {
		return device.PlaneSumDescBytes
	}
	return device.PlaneDescBytes
}

// planeSpace returns the size of the part of the table for planes if this number of pairs is left.
func (t *Table) planeSpace(pairs int) int {
	if t.summed {
		return len(t.Buf) / 2
	}
	return max(len(t.Buf)/2, len(t.Buf)-pairs*device.PairBytes)
}

// pairsThatFit returns the number of pairs that fit into bytes with their sums.
func (t *Table) pairsThatFit(bytes, leaves int) int {
	if !t.summed {
		return bytes / device.PairBytes
	}
	return (bytes - TableAlign) / (device.PairBytes + leaves*sumBytes)
}

// planeSet describes the planes that describePlanes has written: their number, and the units,
// leaves and bytes of one page of all of them.
type planeSet struct {
	n, units, leaves int // units are of device.PieceBytes; the kernel splits long planes into pieces
	bytes            int64
}

// describePlanes writes descriptors of planes to buf. If all is set, it writes all that fit.
// Otherwise it writes as many as stay within the limit and leave half of the table for the sums of
// a page.
func (t *Table) describePlanes(buf []byte, planes []mem.Plane, all bool) (ps planeSet) {
	size := t.planeBytes()
	for ps.n < len(planes) && len(buf) >= size {
		pl := &planes[ps.n]
		leaves := int(pl.Bytes / mem.LeafBytes)
		if ps.n > 0 && !all && (ps.bytes+pl.Bytes > t.Limit || t.summed && (ps.leaves+leaves)*sumBytes > len(t.Buf)/2) {
			break
		}
		d := buf[:size]
		device.PlaneDescOf(pl).Put(d)
		if t.summed {
			device.PlaneSums{Off: uint64(ps.leaves)}.Put(d)
		}
		buf = buf[size:]
		ps.n++
		ps.units += int(CeilDiv(pl.Bytes, device.PieceBytes))
		ps.leaves += leaves
		ps.bytes += pl.Bytes
	}
	if t.summed {
		t.strides(ps)
	}
	return ps
}
