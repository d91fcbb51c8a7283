package describe

import (
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// listPieces writes the next part of the list, in pieces of at most device.PieceBytes, until t is
// full or has about limit bytes. It returns the number of pieces.
func (c *Cursor) listPieces(t *Table, limit int64) int {
	dsts, srcs, buf := c.Batch.Dst, c.Batch.Src, t.Buf
	i, off, bytes := c.i, c.off, int64(0)
list:
	for ; i < len(dsts); i, off = i+1, 0 {
		dst, src := &dsts[i], &srcs[i]
		to, from := dst.Region.Dev()+mem.DevAddr(dst.Off), src.Region.Dev()+mem.DevAddr(src.Off)
		for off < dst.Len {
			if len(buf) < device.CopyDescBytes || bytes >= limit {
				break list
			}
			piece := min(dst.Len-off, device.PieceBytes)
			device.CopyDesc{Dst: to + mem.DevAddr(off), Src: from + mem.DevAddr(off), Bytes: uint64(piece)}.Put(buf)
			buf = buf[device.CopyDescBytes:]
			off += piece
			bytes += piece
		}
	}
	n := (len(t.Buf) - len(buf)) / device.CopyDescBytes
	c.i, c.off, t.Bytes = i, off, bytes
	c.listed += n
	return n
}

// Pieces writes the next part of the batch, in pieces of at most device.PieceBytes, until t is full
// or has about t.Limit bytes. A call covers the list or the Paged. It returns the number of pieces.
func (c *Cursor) Pieces(t *Table) int {
	if c.i < len(c.Batch.Dst) {
		return c.listPieces(t, t.Limit)
	}
	n, bytes := 0, int64(0)
	for buf := t.Buf; len(buf) >= device.CopyDescBytes && bytes < t.Limit && !c.Done(); {
		p := c.Batch.Paged
		g := &p.Groups[c.group]
		pl, pair := &g.Planes[c.plane], g.Pairs[c.pair]
		dst, src := g.Slots.At(pair.Slot).Sub(pl.SlotOff+c.off, pl.Bytes-c.off), pl.Page(pair.Page).Sub(c.off, pl.Bytes-c.off)
		if p.Dir == mem.ToPages {
			dst, src = src, dst
		}
		piece := min(dst.Len, device.PieceBytes)
		if piece > 0 {
			device.CopyDesc{Dst: dst.Dev(), Src: src.Dev(), Bytes: uint64(piece)}.Put(buf)
			buf, bytes, n = buf[device.CopyDescBytes:], bytes+piece, n+1
		}
		c.advance(g, piece)
	}
	t.Bytes = bytes
	return n
}

// advance moves on by n bytes of the current plane of the current pair.
func (c *Cursor) advance(g *mem.PageGroup, n int64) {
	if c.off += n; c.off < g.Planes[c.plane].Bytes {
		return
	}
	c.off = 0
	if c.plane++; c.plane < len(g.Planes) {
		return
	}
	c.plane = 0
	if c.pair++; c.pair < len(g.Pairs) {
		return
	}
	c.pair, c.group = 0, c.group+1
}
