package describe

import "github.com/kvlane/kvlane/mem"

// Cursor is the position up to which a batch has been issued. The path of a batch determines which
// methods move it: descriptors for kernels, runs for engines, chunks for the staged path.
type Cursor struct {
	Batch *mem.Batch
	// Summed is set if kernels compute the sums of the batch. Behind is set if earlier work is in
	// flight, so that there is time to describe more at once.
	Summed   bool
	Behind   bool
	ended    bool  // rest is the last run
	ahead    bool  // dst and src are valid
	launches int32 // number of described launches
	// Position in the list: byte off of copy i. Runs do not use off.
	i      int
	off    int64
	listed int // number of descriptors written so far
	// Position in the Paged: the next plane and pair of a group and, for chunks, the byte off. For
	// descriptors, planes is the number of planes in this pass over the pairs. sums is the index of
	// the group's first sum; for chunks, that of the next sum.
	group, plane, pair int
	planes             int
	sums               int
	// dst and src are the run that is being merged. It follows the run that was returned last, and
	// started in group aheadGroup.
	dst, src   mem.Extent
	aheadGroup int
	// restDst and restSrc are the rest of a run that Run has split. It started in group restGroup.
	restDst, restSrc mem.Extent
	restGroup        int
}

// Run returns the first limit bytes of the next run, in which copies that are adjacent on both
// sides are merged. ok is false if there are no more runs, which Over reports in advance.
func (c *Cursor) Run(limit int64) (dst, src mem.Extent, ok bool) {
	if c.restDst.Len == 0 {
		d, f, ok := c.merge()
		if !ok {
			return dst, src, false
		}
		c.restDst, c.restSrc = d, f
	}
	dst, src = c.restDst, c.restSrc
	n := min(limit, dst.Len)
	dst.Len, src.Len = n, n
	c.restDst.Off, c.restDst.Len = c.restDst.Off+n, c.restDst.Len-n
	c.restSrc.Off, c.restSrc.Len = c.restSrc.Off+n, c.restSrc.Len-n
	return dst, src, true
}

// Over reports whether Run has returned everything.
func (c *Cursor) Over() bool { return c.ended && c.restDst.Len == 0 }

// merge returns the next run. It sets ended if that is the last run.
func (c *Cursor) merge() (dst, src mem.Extent, ok bool) {
	for {
		d, f, more := c.piece()
		switch {
		case !more:
			c.ended = true
			if !c.ahead {
				return mem.Extent{}, mem.Extent{}, false
			}
			c.ahead, c.restGroup = false, c.aheadGroup
			return c.dst, c.src, true
		case d.Len == 0:
		case !c.ahead:
			c.dst, c.src, c.ahead, c.aheadGroup = d, f, true, c.group
		case follows(c.dst, d) && follows(c.src, f):
			c.dst.Len += d.Len
			c.src.Len += d.Len
		default:
			dst, src = c.dst, c.src
			c.restGroup = c.aheadGroup
			c.dst, c.src, c.aheadGroup = d, f, c.group
			return dst, src, true
		}
	}
}

// piece returns the next copy: first those of the list, then those of the Paged, page by page.
func (c *Cursor) piece() (dst, src mem.Extent, ok bool) {
	b := c.Batch
	if c.i < len(b.Dst) {
		c.i++
		return b.Dst[c.i-1], b.Src[c.i-1], true
	}
	for b.Paged != nil && c.group < len(b.Paged.Groups) {
		g := &b.Paged.Groups[c.group]
		if c.pair == len(g.Pairs) || len(g.Planes) == 0 {
			c.group, c.pair = c.group+1, 0
			continue
		}
		pl, ps := &g.Planes[c.plane], g.Pairs[c.pair]
		if c.plane++; c.plane == len(g.Planes) {
			c.plane, c.pair = 0, c.pair+1
		}
		dst, src = g.Slots.At(ps.Slot).Sub(pl.SlotOff, pl.Bytes), pl.Page(ps.Page)
		if wholeSlots(g) && pl.Bytes == pl.Stride {
			n := successors(g.Pairs[c.pair-1:])
			c.pair += n
			dst.Len, src.Len = dst.Len*int64(1+n), src.Len*int64(1+n)
		}
		if b.Paged.Dir == mem.ToPages {
			dst, src = src, dst
		}
		return dst, src, true
	}
	return mem.Extent{}, mem.Extent{}, false
}

// successors returns the number of pairs after the first that continue it on both sides.
func successors(pairs []mem.PageSlot) int {
	page, slot := pairs[0].Page, pairs[0].Slot
	for i, ps := range pairs[1:] {
		if page, slot = page+1, slot+1; ps.Page != page || ps.Slot != slot {
			return i
		}
	}
	return len(pairs) - 1
}

func follows(a, b mem.Extent) bool { return a.Region == b.Region && a.Off+a.Len == b.Off }
