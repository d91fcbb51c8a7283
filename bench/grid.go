package bench

import (
	"cmp"
	"slices"

	"github.com/kvlane/kvlane/mem"
)

// Cell is a block size and a number of blocks.
type Cell struct {
	Size  int64 `json:"block_bytes"`
	Count int   `json:"count"`
}

var (
	defaultSizes  = []int64{256, 512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20}
	defaultCounts = []int{1, 4, 16, 64, 256, 1024, 10_000} // at latencySize
	fullCounts    = []int{1, 10, 100, 1000, 10_000, MaxCount}
)

// latencySize is the block size for which latencies are reported by count.
const latencySize = 4 << 10

// slotSizes are typical sizes of pieces of a page.
var slotSizes = []int64{4 << 10, 8 << 10}

// most returns the maximum number of blocks of a size in a repetition.
func (o *Options) most(size int64) int { return max(1, int(min(o.Bytes/size, MaxCount))) }

// largest returns the largest block size of the cells.
func (o *Options) largest() int64 {
	var largest int64
	for _, c := range o.cells() {
		largest = max(largest, c.Size)
	}
	return largest
}

// hostBytes returns the length of the pinned source and of the pinned destination.
func (o *Options) hostBytes() int64 { return max(o.Bytes, o.ReferenceBytes) }

// groups returns the places between host and device. Places of the same cell are adjacent.
func (o *Options) groups() []place {
	var all []place
	for _, c := range o.cells() {
		for _, l := range o.Layouts {
			at := c
			if l == HostSlots && len(o.Sizes) == 0 && !slices.Contains(slotSizes, c.Size) {
				continue
			}
			if row := o.row(l, c.Size); l == HostSlots {
				if at.Count -= at.Count % row; row < 2 || at.Count == 0 {
					continue
				}
			}
			for _, d := range o.Directions {
				all = append(all, place{at, d, l})
			}
		}
	}
	return all
}

// row returns the number of blocks that are contiguous in a row on the host side.
func (o *Options) row(l Layout, size int64) int {
	if l != HostSlots || o.SlotBytes%size != 0 {
		return 1
	}
	return int(o.SlotBytes / size)
}

// cells returns the cells of at most o.Bytes, sorted by size and count.
func (o *Options) cells() []Cell {
	var list []Cell
	add := func(size int64, counts ...int) {
		for _, n := range counts {
			if size*int64(n) <= o.Bytes && (o.Form != PagesSummed || size%mem.LeafBytes == 0) {
				list = append(list, Cell{size, n})
			}
		}
	}
	switch {
	case o.Full && len(o.Sizes) == 0 && len(o.Counts) == 0:
		for size := int64(MinSize); size <= MaxSize; size *= 2 {
			add(size, fullCounts...)
			add(size, o.most(size))
		}
	case len(o.Counts) > 0:
		sizes := o.Sizes
		if len(sizes) == 0 {
			sizes = defaultSizes
		}
		for _, size := range sizes {
			add(size, o.Counts...)
		}
	case len(o.Sizes) > 0:
		for _, size := range o.Sizes {
			add(size, o.most(size))
		}
	default:
		for _, size := range defaultSizes {
			add(size, o.most(size))
		}
		add(latencySize, defaultCounts...)
	}
	slices.SortFunc(list, compareCells)
	return slices.Compact(list)
}

// compareCells compares by size, then by count.
func compareCells(a, b Cell) int {
	return cmp.Or(cmp.Compare(a.Size, b.Size), cmp.Compare(a.Count, b.Count))
}
