package file

import (
	"sync/atomic"

	"github.com/kvlane/kvlane/mem"
)

// part is a set of transfers of a batch in one direction. If it has a chunk, it includes the copies
// between the chunk and the pieces.
type part struct {
	batch     *batch
	transfers []transfer
	first     [1]transfer // storage for most parts without a chunk
	begun     int
	pending   atomic.Int32 // unfinished transfers of a part with a chunk

	straight bool       // transfers use the memory of the pieces
	chunk    mem.Extent // used if not straight; without a region after release
	write    bool
	device   bool
	// list holds the copies between chunk and pieces. In the first part of a crossing it holds
	// those of all its parts.
	list mem.Batch
}

func alignDown(n int64) int64 { return n &^ (Align - 1) }
func alignUp(n int64) int64   { return alignDown(n + Align - 1) }

// cutter splits a batch's pieces into parts.
type cutter struct {
	pieces []piece
	cut    int64 // bytes of the first piece that are already in parts
	most   int64 // maximum bytes of a transfer
	whole  bool  // pieces of device memory are also moved without a chunk
	parts  []part
}

// partsAtOnce is the number of parts that are allocated together, because each scattered piece
// needs a part.
const partsAtOnce = 32

// part returns an empty part with the direction and kind of memory of p.
func (c *cutter) part(b *batch, p *piece) *part {
	if len(c.parts) == 0 {
		c.parts = make([]part, min(len(c.pieces)+1, partsAtOnce))
	}
	q := &c.parts[0]
	c.parts = c.parts[1:]
	q.batch, q.write, q.device = b, p.write, p.device()
	return q
}

func (c *cutter) empty() bool { return len(c.pieces) == 0 }

// straight reports whether the next part needs no chunk.
func (c *cutter) straight() bool { return c.pieces[0].straight || c.whole && c.pieces[0].device() }

// take removes n bytes from the first piece.
func (c *cutter) take(n int64) {
	if c.cut += n; c.cut == c.pieces[0].mem.Len {
		c.pieces, c.cut = c.pieces[1:], 0
	}
}

// nextStraight returns the next part that needs no chunk.
func (c *cutter) nextStraight(b *batch) *part {
	p := c.pieces[0]
	off := p.off + c.cut
	n := p.end() - off
	if n > c.most { // keep the next part aligned
		n = alignDown(off+c.most) - off
	}
	e := p.mem.Sub(c.cut, n)
	c.take(n)
	q := c.part(b, &p)
	q.straight, q.transfers = true, q.first[:0]
	add := func(from, n int64, direct bool) {
		if n > 0 {
			q.transfers = append(q.transfers, transfer{file: p.file, off: off + from, mem: e.Sub(from, n), write: p.write, direct: direct, part: q, need: n})
		}
	}
	head := alignUp(off) - off
	middle := alignDown(off+n) - off - head
	if direct := b.mayDirect(&p) && middle > 0 && (off-int64(e.CPU()))%Align == 0; !direct || q.device {
		add(0, n, false)
		return q
	}
	add(0, head, false)
	add(head, middle, true)
	add(head+middle, n-head-middle, false)
	return q
}

// nextStaged fills the chunk with the next pieces of the same direction and kind of memory.
func (c *cutter) nextStaged(b *batch, chunk mem.Extent) *part {
	first := c.pieces[0]
	q := c.part(b, &first)
	q.chunk = chunk
	// most is the number of pieces in the chunk if all are scattered.
	most := min(int(chunk.Len/alignUp(min(first.mem.Len, chunk.Len))), len(c.pieces))
	q.transfers, q.list.Dst, q.list.Src = make([]transfer, 0, most), make([]mem.Extent, 0, most), make([]mem.Extent, 0, most)
	for at := int64(0); at < chunk.Len && !c.empty() && !c.straight() && c.pieces[0].sharesPart(&first); {
		at += c.fill(q, chunk.Sub(at, chunk.Len-at))
	}
	return q
}

// fill adds one transfer to q, between the start of space and pieces that are adjacent in a file.
// It returns the number of bytes used, in whole pages. A byte has the same offset within its page
// in space and in the file.
func (c *cutter) fill(q *part, space mem.Extent) int64 {
	first := c.pieces[0]
	start := first.off + c.cut
	page := alignDown(start)
	end, limit := start, page+min(space.Len, q.batch.grain(&first))
	for !c.empty() && !c.straight() {
		p := &c.pieces[0]
		off := p.off + c.cut
		// A read may include a gap before the next piece, up to the next page boundary.
		if p.file != first.file || !p.sharesPart(&first) || off >= limit || off != end && (q.write || off > alignUp(end) || off < start) {
			break
		}
		n := min(p.end()-off, limit-off)
		in, own := space.Sub(off-page, n), p.mem.Sub(c.cut, n)
		if q.write {
			in, own = own, in
		}
		q.list.Dst, q.list.Src = append(q.list.Dst, own), append(q.list.Src, in)
		end = max(end, off+n)
		c.take(n)
	}
	used := alignUp(end) - page
	t := transfer{file: first.file, off: start, mem: space.Sub(start-page, end-start), write: q.write, part: q, need: end - start}
	// placeFile made writes with an unaligned end buffered.
	if q.batch.mayDirect(&first) && (!q.write || start%Align == 0) {
		t.off, t.mem, t.need, t.direct = page, space.Sub(0, used), end-page, true
	}
	q.transfers = append(q.transfers, t)
	return used
}
