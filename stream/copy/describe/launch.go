package describe

import (
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// TableAlign is the alignment of tables: a cache line, so that no two launches share one.
const TableAlign = 64

// MaxLaunches is how many launches one step has at most.
const MaxLaunches = 16

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

// Table is what one launch reads: where it goes, and what came of it.
type Table struct {
	Buf   []byte
	Dev   mem.DevAddr // of Buf
	Limit int64       // about so many bytes to copy at most; one page of one plane always passes
	// Left is how many bytes of the batch are left, if the launch should take a growing share of them; zero: as many as the
	// limit.
	Left int64

	Bytes int64   // to copy
	Rows  SumRows // where sums will be; At counts from Buf

	summed bool // of a Paged
}

// Launch writes the descriptors of one launch to t and moves on. It sets CTAs to the number of copies, the most that can
// be busy. used is how much of t.Buf it took, to the next table; zero where that is too short or nothing is left.
func (c *Cursor) Launch(t *Table, k *device.Kernel) (used uint64) {
	if c.i < len(c.Batch.Dst) {
		limit := t.Limit
		if t.Left > 0 {
			limit = min(limit, c.share(t.Left, firstLaunch, launchGrowth))
		}
		if n := c.listPieces(t, limit); n > 0 {
			c.launches++
			*k = device.ListArgs{Descs: t.Dev, Count: uint64(n)}.Kernel(device.KernelCopyList, n)
			return t.upTo(uint64(n) * device.CopyDescBytes)
		}
		if c.i < len(c.Batch.Dst) {
			return 0
		}
	}
	if c.Done() {
		return 0
	}
	t.summed = c.Summed
	if used = c.pages(t, k); used > 0 {
		c.launches++
	}
	return t.upTo(used)
}

// upTo is where another table may begin behind used bytes.
func (t *Table) upTo(used uint64) uint64 { return min(Align(used, TableAlign), uint64(len(t.Buf))) }

// share is how much of left the next launch should take, where the first takes so much and each further one so many bits
// more: all of it where less than one more launch would remain.
func (c *Cursor) share(left, first int64, growth int) int64 {
	n := int(c.launches)
	if c.Behind {
		n += 2
	}
	if n >= 10 || left <= first<<(growth*n+1) {
		return left
	}
	return first << (growth * n)
}

// Done reports whether nothing is left to describe, and skips page groups that copy nothing.
func (c *Cursor) Done() bool {
	if c.i < len(c.Batch.Dst) {
		return false
	}
	p := c.Batch.Paged
	if p == nil {
		return true
	}
	for c.group < len(p.Groups) && (len(p.Groups[c.group].Pairs) == 0 || len(p.Groups[c.group].Planes) == 0) {
		c.group++
	}
	return c.group == len(p.Groups)
}

// Space returns how many bytes the tables of the rest of the batch want, in several launches where it is long: each has a
// table of its own, and what does not fit for want of that would be one launch more. listDescs is the list's total of
// descriptors.
func (c *Cursor) Space(listDescs int) uint64 {
	n := uint64(0)
	if c.i < len(c.Batch.Dst) {
		n = Align(uint64(listDescs-c.listed)*device.CopyDescBytes, TableAlign)
		if listDescs > longList {
			n += MaxLaunches * TableAlign
		}
	}
	if c.Batch.Paged == nil {
		return n
	}
	t := Table{summed: c.Summed}
	for i := c.group; i < len(c.Batch.Paged.Groups); i++ {
		g := &c.Batch.Paged.Groups[i]
		planes := Align(uint64(len(g.Planes)*t.planeBytes()), TableAlign)
		n += planes + Align(uint64(len(g.Pairs))*device.PairBytes, TableAlign)
		if len(g.Pairs) > 2*firstPairs {
			n += pairLaunches * (planes + 3*TableAlign)
		}
		if c.Summed {
			n += Align(uint64(leavesOf(g.Planes)*len(g.Pairs))*sumBytes, TableAlign) + TableAlign
		}
	}
	return n
}
