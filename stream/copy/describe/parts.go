package describe

import (
	"slices"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// Parts describes a launch that copies several page groups, one after the other, and reports the
// completion of each.
type Parts struct {
	First, N int       // groups of the batch
	CTAs     int       // thread blocks of the launch, each with one word per part
	Words    []byte    // completion words of the parts, in the table
	Rows     []SumRows // one per part if sums are requested; At is relative to the table's start
	Bytes    int64     // bytes to copy
}

// Completed reports whether part i has completed.
func (p *Parts) Completed(i int) bool {
	words := p.Words[i*p.CTAs*device.PartDoneBytes:][:p.CTAs*device.PartDoneBytes]
	for ; len(words) > 0; words = words[device.PartDoneBytes:] {
		if hostmem.LoadUint64(words) == 0 {
			return false
		}
	}
	return true
}

// ReportsParts reports whether the batch requests reports of completed page groups and has several
// groups.
func (c *Cursor) ReportsParts() bool {
	p := c.Batch.Paged
	return p != nil && p.Completed != nil && len(p.Groups) > 1
}

// LayerLeft returns the remaining bytes of the next group if the previous or the following group
// has the same pairs. Such groups are layers of the same blocks, each of which may be awaited.
func (c *Cursor) LayerLeft() (bytes int64, ok bool) {
	if !c.ReportsParts() || c.i < len(c.Batch.Dst) || c.group == len(c.Batch.Paged.Groups) {
		return 0, false
	}
	groups, next := c.Batch.Paged.Groups, c.group+1
	g := &groups[c.group]
	if !samePairs(g, before(groups, c.group)) && (next == len(groups) || !samePairs(&groups[next], g)) {
		return 0, false
	}
	for i := range g.Planes {
		bytes += g.Planes[i].Bytes * int64(len(g.Pairs)-c.pair)
		if i < c.plane {
			bytes -= g.Planes[i].Bytes
		}
	}
	return bytes - c.off, true
}

// groupSpace returns the size of a part's planes, pairs and sums in a table. Planes and pairs that
// the previous group has too take no space. before may be nil.
func (c *Cursor) groupSpace(g, before *mem.PageGroup) (bytes uint64) {
	t := Table{summed: c.Summed}
	if !samePlanes(g, before) {
		bytes += Align(uint64(len(g.Planes)*t.planeBytes()), TableAlign)
	}
	if !samePairs(g, before) {
		bytes += Align(uint64(len(g.Pairs))*device.PairBytes, TableAlign)
	}
	if c.Summed {
		bytes += Align(uint64(leavesOf(g.Planes)*len(g.Pairs))*sumBytes, TableAlign)
	}
	return bytes
}

// partSpace returns the additional size of n parts.
func partSpace(n, ctas int) uint64 {
	return Align(uint64(n*device.PartDescBytes), TableAlign) + Align(uint64(n*ctas*device.PartDoneBytes), TableAlign)
}

// samePairs reports whether two groups have the same pairs, in the same memory.
func samePairs(a, b *mem.PageGroup) bool {
	return b != nil && len(a.Pairs) == len(b.Pairs) && len(a.Pairs) > 0 && &a.Pairs[0] == &b.Pairs[0]
}

// samePlanes reports whether two groups have the same planes, in the same memory.
func samePlanes(a, b *mem.PageGroup) bool {
	return b != nil && len(a.Planes) == len(b.Planes) && len(a.Planes) > 0 && &a.Planes[0] == &b.Planes[0]
}

// before returns group i-1 of groups, or nil.
func before(groups []mem.PageGroup, i int) *mem.PageGroup {
	if i == 0 {
		return nil
	}
	return &groups[i-1]
}

// fit returns the number of the remaining groups that fit as parts into the available bytes of a
// table, and the size that they need. It stops at about limit bytes to copy.
func (c *Cursor) fit(available uint64, limit int64, ctas int) (n int, space uint64) {
	groups := c.Batch.Paged.Groups[c.group:]
	bytes, used, planes := int64(0), uint64(0), 0
	for n < len(groups) && n < device.MaxParts && (n == 0 || bytes < limit) {
		g, last := &groups[n], before(groups, n)
		if !samePlanes(g, last) {
			planes += len(g.Planes)
		}
		more := c.groupSpace(g, last)
		if planes > device.MaxPartPlanes || used+more+partSpace(n+1, ctas) > available {
			break
		}
		used += more
		bytes += groupBytes(g)
		n++
	}
	return n, used + partSpace(n, ctas)
}

func groupBytes(g *mem.PageGroup) (n int64) {
	for i := range g.Planes {
		n += g.Planes[i].Bytes * int64(len(g.Pairs))
	}
	return n
}

// PartsSpace returns the size of the table for as many of the remaining groups as one launch can
// take.
func (c *Cursor) PartsSpace(ctas int) uint64 {
	const any = 1 << 62
	_, space := c.fit(any, any, ctas)
	return space
}

// LaunchParts implements Launch for as many whole groups as fit into t. p describes the launch,
// which reports their completion. used is the size of the used part of t.Buf. It is zero if no
// group fits, or if another part of the batch must be described first.
func (c *Cursor) LaunchParts(t *Table, k *device.Kernel, ctas int, p *Parts) (used uint64) {
	if c.i < len(c.Batch.Dst) || c.Done() || c.pair > 0 || c.plane > 0 {
		return 0
	}
	t.summed = c.Summed
	n, _ := c.fit(uint64(len(t.Buf)), t.Limit, ctas)
	if n == 0 {
		return 0
	}
	*p = Parts{First: c.group, N: n, CTAs: ctas, Rows: p.Rows[:0]}
	if t.summed {
		p.Rows = slices.Grow(p.Rows, n)
	}
	words := Align(uint64(n*device.PartDescBytes), TableAlign)
	p.Words = t.Buf[words:][:n*ctas*device.PartDoneBytes]
	clear(p.Words)
	used = partSpace(n, ctas)
	planes, pairs := uint64(0), uint64(0)
	groups := c.Batch.Paged.Groups[c.group:]
	for i := range n {
		g, last := &groups[i], before(groups, i)
		leaves := leavesOf(g.Planes)
		if !samePlanes(g, last) {
			planes = used
			c.describeAll(t, g, planes, leaves)
			used += Align(uint64(len(g.Planes)*t.planeBytes()), TableAlign)
		}
		if !samePairs(g, last) {
			pairs = used
			copy(t.Buf[pairs:], hostmem.Bytes(g.Pairs))
			used += Align(uint64(len(g.Pairs))*device.PairBytes, TableAlign)
		}
		d := device.PartDesc{
			Planes: t.Dev + mem.DevAddr(planes), NPlanes: uint64(len(g.Planes)), Pairs: t.Dev + mem.DevAddr(pairs), NPairs: uint64(len(g.Pairs)),
			Slots: g.Slots.Region.Dev() + mem.DevAddr(g.Slots.Base), SlotStride: uint64(g.Slots.Stride),
		}
		if t.summed {
			d.Sums = t.Dev + mem.DevAddr(used)
			p.Rows = append(p.Rows, c.rows(g, leaves, len(g.Pairs), used))
			used += Align(uint64(leaves*len(g.Pairs))*sumBytes, TableAlign)
			c.sums += leaves * len(g.Pairs)
		}
		d.Put(t.Buf[i*device.PartDescBytes:])
		p.Bytes += groupBytes(g)
		c.group++
	}
	args, name := device.PartsArgs{
		Parts: t.Dev, NParts: uint64(n), Direction: uint64(c.Batch.Paged.Dir), Done: t.Dev + mem.DevAddr(words),
	}, device.KernelCopyParts
	if t.summed {
		name = device.KernelCopyPartsSum
	}
	*k = args.Kernel(name, ctas)
	t.Bytes = p.Bytes
	c.launches++
	return t.upTo(used)
}

// describeAll writes the planes of a group. all is the number of leaves of one page.
func (c *Cursor) describeAll(t *Table, g *mem.PageGroup, at uint64, all int) {
	size, leaves := t.planeBytes(), 0
	for i := range g.Planes {
		d := t.Buf[at+uint64(i*size):][:size]
		device.PlaneDescOf(&g.Planes[i]).Put(d)
		if t.summed {
			device.PlaneSums{Off: uint64(leaves), Stride: uint64(all)}.Put(d)
		}
		leaves += int(g.Planes[i].Bytes / mem.LeafBytes)
	}
}

// Groups returns the number of page groups, from the first on, that have been described or returned
// completely.
func (c *Cursor) Groups() int {
	switch {
	case c.Batch.Paged == nil || c.i < len(c.Batch.Dst):
		return 0
	case c.restDst.Len > 0:
		return c.restGroup
	case c.ahead:
		return c.aheadGroup
	}
	return c.group
}
