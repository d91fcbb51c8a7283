package describe

import (
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// TableAlign is the alignment of tables: a cache line, so that no two launches share one.
const TableAlign = 64

// MaxLaunches is the maximum number of launches of one step.
const MaxLaunches = 16

// The first launch of a batch copies little, and each further one several times as much. The device
// then starts early, while the rest is described, which is faster than copying. The bus is idle for
// 5 us between two launches (H100), so their number should be small. A list costs the CPU much more
// per block than pages, whose pairs the kernel reads as they are. Launches of pages are therefore
// larger and counted in pairs.
const (
	firstLaunch  = 2 << 20 // bytes of a list
	launchGrowth = 2       // bits
	firstPairs   = 4096
	pairsGrowth  = 3 // bits
	pairLaunches = 4 // after the first, for any likely number of pairs
	longList     = firstLaunch / device.PieceBytes
)

// Table is the memory that one launch reads, and describes its contents.
type Table struct {
	Buf   []byte
	Dev   mem.DevAddr // device address of Buf
	Limit int64       // approximate limit of bytes to copy; at least one page of one plane is described
	// Left is the number of remaining bytes of the batch, of which successive launches take growing
	// parts. Zero: the launch takes as much as Limit permits.
	Left int64

	Bytes int64   // bytes to copy
	Rows  SumRows // location of the sums; At is relative to Buf

	summed bool // sums of a Paged are computed
}

// Launch writes the descriptors of one launch to t and advances the cursor. It sets k.CTAs to the
// number of copies, the highest useful number of thread blocks. used is the size of the used part
// of t.Buf, up to the next table. It is zero if t.Buf is too short or nothing is left to describe.
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

// upTo returns the offset of the next table after used bytes.
func (t *Table) upTo(used uint64) uint64 { return min(Align(used, TableAlign), uint64(len(t.Buf))) }

// share returns the part of left that the next launch should take. The first launch takes first,
// and each further one 2^growth times as much. It returns all of left if less than one more launch
// would remain.
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

// Done reports whether everything is described. It skips page groups that copy nothing.
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

// Space returns the size of the tables for the rest of the batch, including the alignment of the
// tables of several launches. With less space, one more launch would be needed. listDescs is the
// number of descriptors of the whole list.
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
