package nic

import (
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// piece is a copy, or what is left of it, in the addresses of requests.
type piece struct {
	dst, src           uint64
	dstIndex, srcIndex int32 // of the manifest
	n                  int64
	opcode             rdma.WROpcode
}

// opcode returns how a copy between these travels: the device's side is the remote one.
func opcode(dst, src *mem.Region) rdma.WROpcode {
	if src.Kind() == mem.KindDevice && dst.Kind() != mem.KindDevice {
		return rdma.WRRDMARead
	}
	return rdma.WRRDMAWrite
}

// alongOpcode returns how the copies of a page group travel along its slots: the slots' side is the remote one.
func alongOpcode(dir mem.Direction) rdma.WROpcode {
	if dir == mem.ToPages {
		return rdma.WRRDMARead
	}
	return rdma.WRRDMAWrite
}

// alongSlots reports whether the copies of g are neighbours in the slots: of one page the planes, or of one plane the slots
// of the pages, if there are more such neighbours than there are among the pages. Requests that go on there need a
// scatter-gather entry for each page and plane, and so one for many copies that are scattered over the device. With several
// queue pairs neighbours would travel by different ones.
func (s *Stream) alongSlots(g *mem.PageGroup, dir mem.Direction) bool {
	if len(s.pairs) > 1 || s.rails[0].maxSGE(alongOpcode(dir)) == 1 {
		return false
	}
	for i := 1; i < len(g.Planes); i++ {
		if p := &g.Planes[i-1]; g.Planes[i].SlotOff == p.SlotOff+p.Bytes {
			return true
		}
	}
	if len(g.Planes) != 1 || g.Slots.Stride != g.Planes[0].Bytes {
		return false
	}
	slots, pages := 0, 0
	for i := 1; i < len(g.Pairs); i++ {
		if g.Pairs[i].Slot == g.Pairs[i-1].Slot+1 {
			slots++
		}
		if g.Pairs[i].Page == g.Pairs[i-1].Page+1 {
			pages++
		}
	}
	return slots > pages || slots > 0 && g.Planes[0].Stride != g.Planes[0].Bytes
}

// cursor walks through the copies of a batch.
type cursor struct {
	piece
	i                    int         // of the list
	dstRegion, srcRegion *mem.Region // of the copy before it
	dstBase, srcBase     uint64      // their addresses
	group                int
	pair                 int
	first, plane         int // of manifest.planes: the group's first, and the next
}

// next moves to the next copy that has bytes. It returns false at the end.
func (c *cursor) next(b *mem.Batch, m *manifest) bool {
	for c.i < len(b.Dst) {
		d, f := &b.Dst[c.i], &b.Src[c.i]
		c.i++
		if d.Len == 0 {
			continue
		}
		if d.Region != c.dstRegion || f.Region != c.srcRegion {
			c.turn(m, d.Region, f.Region)
		}
		c.dst, c.src, c.n = c.dstBase+uint64(d.Off), c.srcBase+uint64(f.Off), d.Len
		return true
	}
	return b.Paged != nil && c.nextPage(b.Paged, m)
}

// turn makes these the regions of the next copies of the list.
func (c *cursor) turn(m *manifest, dst, src *mem.Region) {
	c.dstRegion, c.srcRegion = dst, src
	c.dstIndex, c.srcIndex = m.find(dst), m.find(src)
	c.dstBase, c.srcBase = m.base[c.dstIndex], m.base[c.srcIndex]
	c.opcode = opcode(dst, src)
}

func (c *cursor) nextPage(p *mem.Paged, m *manifest) bool {
	for c.group < len(p.Groups) {
		pairs, end := p.Groups[c.group].Pairs, m.groups[c.group]
		if c.plane == end {
			c.plane, c.pair = c.first, c.pair+1
		}
		if c.pair >= len(pairs) || c.plane == end { // a group may have no planes with bytes
			c.group, c.pair, c.first, c.plane = c.group+1, 0, end, end
			continue
		}
		pl, to, from := &m.planes[c.plane], pairs[c.pair].Page, pairs[c.pair].Slot
		c.plane++
		if p.Dir == mem.ToSlots {
			to, from = from, to
		}
		// Field by field: a whole piece would be built aside and copied.
		c.dst, c.src, c.n = pl.dst+uint64(to)*pl.dstStride, pl.src+uint64(from)*pl.srcStride, pl.n
		c.dstIndex, c.srcIndex, c.opcode = pl.dstIndex, pl.srcIndex, pl.opcode
		return true
	}
	return false
}
