package describe

import (
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// listPieces writes descriptors of the next part of the list, in pieces of at most
// device.PieceBytes, until t is full or has about limit bytes to copy. It returns the number of
// pieces.
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
