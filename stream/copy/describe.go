package copy

import (
	"math"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// The first launch of a batch copies a little, each further one several times as much: the device starts early, and describing,
// which is faster than copying, goes on meanwhile. Between two launches the bus is idle for 5 us (H100), so there should be
// few of them. A list costs the CPU so much more a block than pages do, whose pairs are what the kernel reads, that pages are
// counted, and by larger numbers.
const (
	firstLaunch  = 2 << 20 // bytes of a list to copy
	launchGrowth = 2       // bits
	firstPairs   = 4096
	pairsGrowth  = 3 // bits
	pairLaunches = 4 // more than the first, of any number of pairs that is likely
	longList     = firstLaunch / device.PieceBytes
)

// launchBytes is about how much of a list the next launch of o should copy when left bytes are left.
func (o *op) launchBytes(left int64) int64 { return o.portion(left, firstLaunch, launchGrowth) }

// launchPairs is how many pairs of its current group the next launch of o should copy.
func (o *op) launchPairs() int {
	left := 0
	if p := o.at.batch.Paged; p != nil && o.at.group < len(p.Groups) {
		left = len(p.Groups[o.at.group].Pairs) - o.at.pair
	}
	return int(o.portion(int64(left), firstPairs, pairsGrowth))
}

// portion is how much of left the next launch should take, where the first takes so much and each further one so many bits
// more: all of it where less than one more launch would remain.
func (o *op) portion(left, first int64, growth int) int64 {
	n := int(o.launches)
	if o.behind { // there is time to describe more
		n += 2
	}
	if n >= 10 || left <= first<<(growth*n+1) {
		return left
	}
	return first << (growth * n)
}

// table is what one launch reads: where it goes, and what came of it.
type table struct {
	summed bool // of a Paged
	buf    []byte
	dev    mem.DevAddr // of buf
	limit  int64       // about so many bytes to copy at most; one page of one plane always passes
	aim    int64       // about so many bytes of a list will do; zero: as many as the limit
	pairs  int         // so many pairs will do; zero: all

	bytes int64   // to copy
	rows  sumRows // where sums will be; at counts from buf
}

// describe writes the descriptors of one launch to t and moves on. It sets CTAs to the number of copies, the most that can
// be busy. used is zero when t.buf is too short or nothing is left.
func (c *cursor) describe(t *table, k *device.Kernel) (used uint64) {
	if c.i < len(c.batch.Dst) {
		n := c.describeList(t)
		c.listed += n
		if n > 0 {
			*k = device.ListArgs{Descs: t.dev, Count: uint64(n)}.Kernel(device.KernelCopyList, n)
			return uint64(n) * device.CopyDescBytes
		}
		if c.i < len(c.batch.Dst) {
			return 0
		}
	}
	if c.described() {
		return 0
	}
	return c.describePaged(t, k)
}

// described reports whether nothing is left to describe, and skips page groups that copy nothing.
func (c *cursor) described() bool {
	if c.i < len(c.batch.Dst) {
		return false
	}
	p := c.batch.Paged
	if p == nil {
		return true
	}
	for c.group < len(p.Groups) && (len(p.Groups[c.group].Pairs) == 0 || len(p.Groups[c.group].Planes) == 0) {
		c.group++
	}
	return c.group == len(p.Groups)
}

// describeList writes as much of the list as fits, in pieces of device.PieceBytes, and returns the number of pieces.
func (c *cursor) describeList(t *table) int {
	dsts, srcs, buf := c.batch.Dst, c.batch.Src, t.buf
	i, off, bytes, limit := c.i, c.off, int64(0), t.limit
	if t.aim > 0 {
		limit = min(limit, t.aim)
	}
	for ; i < len(dsts); i, off = i+1, 0 {
		dst, src := &dsts[i], &srcs[i]
		to, from := dst.Region.Dev()+mem.DevAddr(dst.Off), src.Region.Dev()+mem.DevAddr(src.Off)
		for off < dst.Len {
			if len(buf) < device.CopyDescBytes || bytes >= limit {
				c.i, c.off, t.bytes = i, off, bytes
				return (len(t.buf) - len(buf)) / device.CopyDescBytes
			}
			piece := min(dst.Len-off, device.PieceBytes)
			device.CopyDesc{Dst: to + mem.DevAddr(off), Src: from + mem.DevAddr(off), Bytes: uint64(piece)}.Put(buf)
			buf = buf[device.CopyDescBytes:]
			off += piece
			bytes += piece
		}
	}
	c.i, c.off, t.bytes = i, off, bytes
	return (len(t.buf) - len(buf)) / device.CopyDescBytes
}

// describePieces writes as much of the batch as fits, of list and Paged, in pieces of device.PieceBytes, and returns the
// number of pieces.
func (c *cursor) describePieces(t *table) int {
	if c.i < len(c.batch.Dst) {
		n := c.describeList(t)
		c.listed += n
		return n
	}
	n, bytes := 0, int64(0)
	for buf := t.buf; len(buf) >= device.CopyDescBytes && bytes < t.limit && !c.described(); {
		p := c.batch.Paged
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
	t.bytes = bytes
	return n
}

// advance moves on by so many bytes of the current plane of the current pair.
func (c *cursor) advance(g *mem.PageGroup, n int64) {
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

// describePaged writes planes and then pairs of the current group, and leaves room for sums behind them: all planes if
// they leave room for the pairs that are left or fill half of the table at most, else as many as do; and as many pairs as
// fit. Planes that do not fit take another pass over the pairs, which is of the same planes from its first launch to its
// last.
func (c *cursor) describePaged(t *table, k *device.Kernel) (used uint64) {
	p := c.batch.Paged
	g := &p.Groups[c.group]
	pairs := g.Pairs[c.pair:]
	planes := g.Planes[c.plane:]
	room := t.planeRoom(len(pairs))
	if c.pair > 0 {
		planes, room = planes[:c.planes], len(t.buf)
	}
	ps := t.describePlanes(t.buf[:max(room, 0)], planes, c.pair > 0)
	if ps.n == 0 || c.pair > 0 && ps.n < c.planes {
		return 0
	}
	at := int(align(uint64(ps.n*t.planeBytes()), tableAlign))
	n := t.pairsThatFit(len(t.buf)-at, ps.leaves)
	if t.limit < math.MaxInt64 && ps.bytes > 0 {
		n = min(n, max(1, int(t.limit/ps.bytes)))
	}
	if t.pairs > 0 {
		n = min(n, t.pairs)
	}
	if n = min(n, len(pairs)); n <= 0 {
		return 0
	}
	// A pair in memory is what the kernel reads: page and slot, of 32 bits each, little-endian as all of CUDA's hosts.
	copy(t.buf[at:], hostmem.Bytes(pairs[:n]))
	used = uint64(at + n*device.PairBytes)

	args, name := device.PagedArgs{
		Planes: t.dev, NPlanes: uint64(ps.n), Pairs: t.dev + mem.DevAddr(at), NPairs: uint64(n),
		Slots: g.Slots.Region.Dev() + mem.DevAddr(g.Slots.Base), SlotStride: uint64(g.Slots.Stride), Direction: uint64(p.Dir),
	}, device.KernelCopyPaged
	if t.summed {
		used = align(used, tableAlign)
		args.Sums, name = t.dev+mem.DevAddr(used), device.KernelCopyPagedSum
		t.rows = c.rows(g, ps.leaves, n, used)
		used += uint64(n*ps.leaves) * sumBytes
	}
	*k = args.Kernel(name, ps.units*n)
	t.bytes = ps.bytes * int64(n)
	c.pass(g, ps.n, n)
	return used
}

// pass moves on by pairs of the pass over so many planes.
func (c *cursor) pass(g *mem.PageGroup, planes, pairs int) {
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

func (t *table) planeBytes() int {
	if t.summed {
		return device.PlaneSumDescBytes
	}
	return device.PlaneDescBytes
}

// planeRoom is how much of the table planes may fill when so many pairs are left.
func (t *table) planeRoom(pairs int) int {
	if t.summed {
		return len(t.buf) / 2
	}
	return max(len(t.buf)/2, len(t.buf)-pairs*device.PairBytes)
}

// pairsThatFit returns how many pairs fit into so many bytes, with their sums.
func (t *table) pairsThatFit(bytes, leaves int) int {
	if !t.summed {
		return bytes / device.PairBytes
	}
	return (bytes - tableAlign) / (device.PairBytes + leaves*sumBytes)
}

// planeSet is what describePlanes wrote: how many planes, and what one page of them comes to.
type planeSet struct {
	n, units, leaves int // units are of device.PieceBytes; the kernel itself cuts long planes into pieces
	bytes            int64
}

// describePlanes writes planes to buf: as many as fit with half of the table left for the sums of a page and within the
// limit, or all that fit.
func (t *table) describePlanes(buf []byte, planes []mem.Plane, all bool) (ps planeSet) {
	size := t.planeBytes()
	for ps.n < len(planes) && len(buf) >= size {
		pl := &planes[ps.n]
		leaves := int(pl.Bytes / mem.LeafBytes)
		if ps.n > 0 && !all && (ps.bytes+pl.Bytes > t.limit || t.summed && (ps.leaves+leaves)*sumBytes > len(t.buf)/2) {
			break
		}
		d := buf[:size]
		device.PlaneDescOf(pl).Put(d)
		if t.summed {
			device.PlaneSums{Off: uint64(ps.leaves)}.Put(d)
		}
		buf = buf[size:]
		ps.n++
		ps.units += int(ceilDiv(pl.Bytes, device.PieceBytes))
		ps.leaves += leaves
		ps.bytes += pl.Bytes
	}
	if t.summed {
		t.strides(ps)
	}
	return ps
}

// descriptorBytes returns how much ring the rest of the batch wants, in several launches where it is long: each has a table of its
// own, and what does not fit for want of that would be one launch more. listDescs is the list's total of descriptors.
func (c *cursor) descriptorBytes(listDescs int, summed bool) uint64 {
	n := uint64(0)
	if c.i < len(c.batch.Dst) {
		n = align(uint64(listDescs-c.listed)*device.CopyDescBytes, tableAlign)
		if listDescs > longList {
			n += kernelStep * tableAlign
		}
	}
	if c.batch.Paged == nil {
		return n
	}
	t := table{summed: summed}
	for i := c.group; i < len(c.batch.Paged.Groups); i++ {
		g := &c.batch.Paged.Groups[i]
		planes := align(uint64(len(g.Planes)*t.planeBytes()), tableAlign)
		n += planes + align(uint64(len(g.Pairs))*device.PairBytes, tableAlign)
		if len(g.Pairs) > 2*firstPairs {
			n += pairLaunches * (planes + 3*tableAlign)
		}
		if summed {
			n += align(uint64(leavesOf(g.Planes)*len(g.Pairs))*sumBytes, tableAlign) + tableAlign
		}
	}
	return n
}
