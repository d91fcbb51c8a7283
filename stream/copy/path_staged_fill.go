package copy

import (
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// stageAlign is what the start of a run in staging memory is aligned to, but for what the pages' own addresses have over it:
// kernels copy 16 bytes at a time where both sides allow.
const stageAlign = 16

// chunk is what one step of the staged path carries.
type chunk struct {
	area  *mem.Region
	stage stageSpan
	buf   []byte // for descriptors, and sums behind them
	descs int
	most  int    // descriptors that fit
	used  uint64 // of staging memory, with gaps
	bytes uint64 // without
	// host and part are where the runs lie in host and in staging memory; the last has no length before endRun. A neighbour
	// of the last would start at hostEnd of hostRegion.
	host, part []mem.Extent
	runs       int
	hostRegion *mem.Region
	hostEnd    int64
	// toHost is the way it goes. piece is how long its pieces are at most, and unit what their lengths are multiples of:
	// where leaves are summed, each is a piece.
	toHost      bool
	piece, unit uint64
	// summed: the kernel leaves a sum for each descriptor that is a leaf. sums is where they belong, at counts from the
	// chunk's first.
	summed bool
	sums   []sumRows
}

// describe describes as much of o as fits into a chunk of area, and returns how many bytes that is.
func (c *chunk) describe(area *mem.Region, o *op, sp span) (bytes int64) {
	*c = chunk{
		area: area, stage: sp.stage, buf: sp.buf, most: mostDescs(len(sp.buf), o.summed),
		host: c.host, part: c.part, toHost: o.stats.ways == wayD2H, summed: o.summed,
	}
	if c.addList(&o.at) {
		c.addPaged(&o.at)
	}
	c.endRun()
	return int64(c.bytes)
}

// descSpace returns how much of the ring so many descriptors take, with their sums, which begin a cache line.
func descSpace(descs int, summed bool) uint64 {
	n := align(uint64(descs)*device.CopyDescBytes, tableAlign)
	if summed {
		n += uint64(descs) * sumBytes
	}
	return n
}

// mostDescs returns how many descriptors fit into so many bytes of the ring.
func mostDescs(bytes int, summed bool) int {
	if !summed {
		return bytes / device.CopyDescBytes
	}
	return (bytes - tableAlign) / (device.CopyDescBytes + sumBytes)
}

// addList describes as much of the list as fits, and reports whether that is all.
func (c *chunk) addList(at *cursor) bool {
	c.piece, c.unit = device.PieceBytes, 1
	hosts, pages := at.batch.Src, at.batch.Dst
	if c.toHost {
		hosts, pages = pages, hosts
	}
	for ; at.i < len(hosts); at.i++ {
		host, page := &hosts[at.i], &pages[at.i]
		if left := host.Len - at.off; left > 0 {
			n := c.take(host.Region, host.Off+at.off, page.Dev()+mem.DevAddr(at.off), left)
			if at.off += n; n < left {
				return false
			}
		}
		at.off = 0
	}
	return true
}

// addPaged describes as much of the Paged as fits, pair by pair and plane by plane: the order of mem.Paged.Sums.
func (c *chunk) addPaged(at *cursor) {
	p := at.batch.Paged
	if p == nil {
		return
	}
	if c.summed {
		c.piece, c.unit = mem.LeafBytes, mem.LeafBytes
	}
	first := c.descs
	for at.group < len(p.Groups) && c.addGroup(at, &p.Groups[at.group], (p.Dir == mem.ToSlots) == c.toHost) {
		at.group, at.pair = at.group+1, 0
	}
	if n := c.descs - first; c.summed && n > 0 {
		c.sums = append(c.sums, sumRows{at: uint64(first) * sumBytes, to: p.Sums[at.sums:], rows: 1, words: n, stride: n})
		at.sums += n
	}
}

// addGroup describes as much of what is left of a group as fits, and reports whether that is all. slotsHost: the slots are
// in host memory, and the planes on the device.
func (c *chunk) addGroup(at *cursor, g *mem.PageGroup, slotsHost bool) bool {
	slots := g.Slots.Region
	for ; at.pair < len(g.Pairs); at.pair++ {
		pair := g.Pairs[at.pair]
		slot := g.Slots.Base + int64(pair.Slot)*g.Slots.Stride
		for ; at.plane < len(g.Planes); at.plane++ {
			pl := &g.Planes[at.plane]
			left := pl.Bytes - at.off
			if left == 0 {
				continue
			}
			inSlot, page := slot+pl.SlotOff+at.off, pl.Base+int64(pair.Page)*pl.Stride+at.off
			var n int64
			if slotsHost {
				n = c.take(slots, inSlot, pl.Region.Dev()+mem.DevAddr(page), left)
			} else {
				n = c.take(pl.Region, page, slots.Dev()+mem.DevAddr(inSlot), left)
			}
			if n < left {
				at.off += n
				return false
			}
			at.off = 0
		}
		at.plane = 0
	}
	return true
}

// take describes as much as fits of n bytes, those of host from off on and those at address page in device memory, and
// returns how many that is.
func (c *chunk) take(host *mem.Region, off int64, page mem.DevAddr, n int64) (taken int64) {
	for taken < n && c.descs < c.most {
		start, fresh := c.used, host != c.hostRegion || off != c.hostEnd || c.unit == mem.LeafBytes && c.used%mem.LeafAlign != 0
		if fresh {
			if start = align(start, stageAlign) + uint64(page%stageAlign); c.runs == len(c.host) {
				break
			}
		}
		if start >= c.stage.room {
			break
		}
		m := min(uint64(n-taken), c.piece, c.stage.bytes-c.bytes, c.stage.room-start) &^ (c.unit - 1)
		if m == 0 {
			break
		}
		if fresh {
			c.beginRun(host, off, start)
		}
		d := c.buf[c.descs*device.CopyDescBytes:][:device.CopyDescBytes]
		to, from := page, c.area.Dev()+mem.DevAddr(c.stage.at+start)
		if c.toHost {
			to, from = from, to
		}
		device.CopyDesc{Dst: to, Src: from, Bytes: m}.Put(d)
		c.descs++
		c.used = start + m
		c.bytes += m
		off, page, taken = off+int64(m), page+mem.DevAddr(m), taken+int64(m)
		c.hostEnd = off
	}
	return taken
}

// beginRun begins a run that lies at off in host, and at start in the chunk's staging memory.
func (c *chunk) beginRun(host *mem.Region, off int64, start uint64) {
	c.endRun()
	c.host[c.runs] = mem.Extent{Region: host, Off: off}
	c.part[c.runs] = mem.Extent{Region: c.area, Off: int64(c.stage.at + start)}
	c.runs++
	c.hostRegion = host
}

// endRun gives the last run its length.
func (c *chunk) endRun() {
	if c.runs > 0 {
		host := &c.host[c.runs-1]
		host.Len = c.hostEnd - host.Off
		c.part[c.runs-1].Len = host.Len
	}
}

// sumsAt returns where the sums belong that the kernel leaves from that position in the ring on.
func (c *chunk) sumsAt(at uint64) []sumRows {
	for i := range c.sums {
		c.sums[i].at += at
	}
	return c.sums
}
