package nic

import (
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// piece is the part of a copy for which no request has been built yet. Its addresses are those in
// requests.
type piece struct {
	dst, src           uint64
	dstIndex, srcIndex int32 // in manifest.regions
	n                  int64
	opcode             rdma.WROpcode
}

// cursor iterates over the copies of a batch.
type cursor struct {
	piece
	i                    int         // next copy of the list
	dstRegion, srcRegion *mem.Region // regions of the previous copy
	dstBase, srcBase     uint64      // addresses of these regions in requests
	group                int
	pair                 int
	first, plane         int // indices in manifest.planes: the group's first plane, and the next
}

// next advances to the next nonempty copy. It returns false at the end.
func (c *cursor) next(b *mem.Batch, m *manifest) bool {
	for c.i < len(b.Dst) {
		d, f := &b.Dst[c.i], &b.Src[c.i]
		c.i++
		if d.Len == 0 {
			continue
		}
		if d.Region != c.dstRegion || f.Region != c.srcRegion {
			c.between(m, d.Region, f.Region)
		}
		c.dst, c.src, c.n = c.dstBase+uint64(d.Off), c.srcBase+uint64(f.Off), d.Len
		return true
	}
	return b.Paged != nil && c.nextPage(b.Paged, m)
}

// between sets the regions of the next copies of the list.
func (c *cursor) between(m *manifest, dst, src *mem.Region) {
	c.dstRegion, c.srcRegion = dst, src
	c.dstIndex, c.srcIndex = m.find(dst), m.find(src)
	c.dstBase, c.srcBase = m.base[c.dstIndex], m.base[c.srcIndex]
	if c.opcode = opcode(dst, src); m.reversed {
		c.opcode = reversed(c.opcode)
	}
}

func (c *cursor) nextPage(p *mem.Paged, m *manifest) bool {
	for c.group < len(p.Groups) {
		pairs, end := p.Groups[c.group].Pairs, m.groups[c.group]
		if c.plane == end {
			c.plane, c.pair = c.first, c.pair+1
		}
		if c.pair >= len(pairs) || c.plane == end { // all planes of the group may be empty
			c.group, c.pair, c.first, c.plane = c.group+1, 0, end, end
			continue
		}
		pl, to, from := &m.planes[c.plane], pairs[c.pair].Page, pairs[c.pair].Slot
		c.plane++
		if p.Dir == mem.ToSlots {
			to, from = from, to
		}
		// Assign fields: a composite literal would be built on the stack and copied.
		c.dst, c.src, c.n = pl.dst+uint64(to)*pl.dstStride, pl.src+uint64(from)*pl.srcStride, pl.n
		c.dstIndex, c.srcIndex, c.opcode = pl.dstIndex, pl.srcIndex, pl.opcode
		return true
	}
	return false
}
