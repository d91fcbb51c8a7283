package describe

import (
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// RunAlign is the alignment of runs in staging memory. A run starts at the same offset from a
// multiple of RunAlign as the page's address, because kernels copy 16 bytes at a time if both sides
// are aligned alike.
const RunAlign = 16

// Place is the memory for a chunk: up to Room bytes of Area from offset At, including gaps between
// runs, and up to Bytes bytes without gaps.
type Place struct {
	Area *mem.Region // staging memory
	At   uint64
	Buf  []byte // for descriptors, followed by sums

	Bytes, Space uint64
}

// Chunk is the part of a batch that one step copies through staging memory.
type Chunk struct {
	Descs int
	Bytes uint64  // copied bytes, without gaps
	Rows  SumRows // location of the leaf sums; At is relative to the chunk's first sum

	place Place
	most  int    // maximum number of descriptors
	used  uint64 // used staging memory in bytes, with gaps
	// host and part hold the runs in host and in staging memory; endRun sets the length of the last
	// one. hostEnd in hostRegion is the start of a copy that would extend the last run.
	host, part []mem.Extent
	runs       int
	hostRegion *mem.Region
	hostEnd    int64
	// toHost is the direction. piece is the greatest length of a piece, and lengths are multiples
	// of unit. If leaves are summed, each leaf is a piece.
	toHost      bool
	piece, unit uint64
}

// NewChunk returns a chunk of at most runs runs, on which Describe may be called repeatedly.
func NewChunk(runs int) Chunk {
	return Chunk{host: make([]mem.Extent, runs), part: make([]mem.Extent, runs)}
}

// Describe describes as much of a batch as fits into place.
func (c *Chunk) Describe(at *Cursor, place Place, toHost bool) {
	*c = Chunk{
		place: place, most: mostDescs(len(place.Buf), at.Summed), host: c.host, part: c.part, toHost: toHost,
	}
	if c.addList(at) {
		c.addPaged(at)
	}
	c.endRun()
}

// Runs returns the runs in host and in staging memory. They are valid until the next call of
// Describe.
func (c *Chunk) Runs() (host, staging []mem.Extent) { return c.host[:c.runs], c.part[:c.runs] }

// ChunkSpace returns the size in bytes of descs descriptors and, if summed is set, of their sums,
// which start at a cache line.
func ChunkSpace(descs int, summed bool) uint64 {
	n := Align(uint64(descs)*device.CopyDescBytes, TableAlign)
	if summed {
		n += uint64(descs) * sumBytes
	}
	return n
}

// mostDescs returns the number of descriptors that fit into a number of bytes of the ring.
func mostDescs(bytes int, summed bool) int {
	if !summed {
		return bytes / device.CopyDescBytes
	}
	return (bytes - TableAlign) / (device.CopyDescBytes + sumBytes)
}

// addList describes as much of the list as fits. It reports whether the whole list is described.
func (c *Chunk) addList(at *Cursor) bool {
	c.piece, c.unit = device.PieceBytes, 1
	hosts, pages := at.Batch.Src, at.Batch.Dst
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

// addPaged describes as much of the Paged as fits, pair by pair and plane by plane, in the order of
// mem.Paged.Sums.
func (c *Chunk) addPaged(at *Cursor) {
	p := at.Batch.Paged
	if p == nil {
		return
	}
	if at.Summed {
		c.piece, c.unit = mem.LeafBytes, mem.LeafBytes
	}
	first := c.Descs
	for at.group < len(p.Groups) && c.addGroup(at, &p.Groups[at.group], (p.Dir == mem.ToSlots) == c.toHost) {
		at.group, at.pair = at.group+1, 0
	}
	if n := c.Descs - first; at.Summed && n > 0 {
		c.Rows = SumRows{At: uint64(first) * sumBytes, to: p.Sums[at.sums:], rows: 1, Words: n, stride: n}
		at.sums += n
	}
}

// addGroup describes as much of the rest of a group as fits. It reports whether the group is
// completely described. slotsHost is set if the slots are in host memory and the planes on the
// device.
func (c *Chunk) addGroup(at *Cursor, g *mem.PageGroup, slotsHost bool) bool {
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

// take describes as much as fits of n bytes, which are at offset off in host and at address page in
// device memory. It returns the number of described bytes.
func (c *Chunk) take(host *mem.Region, off int64, page mem.DevAddr, n int64) (taken int64) {
	for taken < n && c.Descs < c.most {
		start, fresh := c.used, host != c.hostRegion || off != c.hostEnd || c.unit == mem.LeafBytes && c.used%mem.LeafAlign != 0
		if fresh {
			if start = Align(start, RunAlign) + uint64(page%RunAlign); c.runs == len(c.host) {
				break
			}
		}
		if start >= c.place.Space {
			break
		}
		m := min(uint64(n-taken), c.piece, c.place.Bytes-c.Bytes, c.place.Space-start) &^ (c.unit - 1)
		if m == 0 {
			break
		}
		if fresh {
			c.beginRun(host, off, start)
		}
		d := c.place.Buf[c.Descs*device.CopyDescBytes:][:device.CopyDescBytes]
		to, from := page, c.place.Area.Dev()+mem.DevAddr(c.place.At+start)
		if c.toHost {
			to, from = from, to
		}
		device.CopyDesc{Dst: to, Src: from, Bytes: m}.Put(d)
		c.Descs++
		c.used = start + m
		c.Bytes += m
		off, page, taken = off+int64(m), page+mem.DevAddr(m), taken+int64(m)
		c.hostEnd = off
	}
	return taken
}

// beginRun starts a run at offset off in host, and at start in the chunk's staging memory.
func (c *Chunk) beginRun(host *mem.Region, off int64, start uint64) {
	c.endRun()
	c.host[c.runs] = mem.Extent{Region: host, Off: off}
	c.part[c.runs] = mem.Extent{Region: c.place.Area, Off: int64(c.place.At + start)}
	c.runs++
	c.hostRegion = host
}

// endRun sets the length of the last run.
func (c *Chunk) endRun() {
	if c.runs > 0 {
		host := &c.host[c.runs-1]
		host.Len = c.hostEnd - host.Off
		c.part[c.runs-1].Len = host.Len
	}
}
