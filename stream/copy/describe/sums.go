package describe

import (
	"encoding/binary"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// sumBytes is the size of one sum, both in the ring and in mem.Paged.Sums.
const sumBytes = 8

// SumRows is the location of a launch's sums: one row per pair, with the sums of the launch's
// planes. The sums stay in the ring until the step's event is done, and are then copied to
// mem.Paged.Sums, because kernels can write only pinned memory.
type SumRows struct {
	At     uint64   // position in the ring
	Words  int      // words per row; zero: there are no sums
	to     []uint64 // part of Sums from the first row on
	rows   int
	stride int // words between the starts of rows in Sums
}

// leavesOf returns the number of leaves of one page in all planes.
func leavesOf(planes []mem.Plane) int {
	n := 0
	for i := range planes {
		n += int(planes[i].Bytes / mem.LeafBytes)
	}
	return n
}

// rows returns the location of the sums of the next n pairs, with this number of words for the
// leaves of the planes from c.plane on.
func (c *Cursor) rows(g *mem.PageGroup, words, n int, at uint64) SumRows {
	stride := leavesOf(g.Planes)
	return SumRows{
		At: at, to: c.Batch.Paged.Sums[c.sums+c.pair*stride+leavesOf(g.Planes[:c.plane]):],
		rows: n, Words: words, stride: stride,
	}
}

// strides sets the number of sums per pair in the descriptors of all planes.
func (t *Table) strides(ps planeSet) {
	for i := range ps.n {
		d := t.Buf[i*device.PlaneSumDescBytes:]
		at := device.ReadPlaneSums(d)
		at.Stride = uint64(ps.leaves)
		at.Put(d)
	}
}

// SumsFit reports whether a ring with spans of this size has space for the sums of one page of each
// plane.
func SumsFit(p *mem.Paged, span uint64) bool {
	const around = device.PlaneSumDescBytes + device.PairBytes + 3*TableAlign
	for i := range p.Groups {
		for j := range p.Groups[i].Planes {
			if leaves := uint64(p.Groups[i].Planes[j].Bytes / mem.LeafBytes); leaves*sumBytes+around > span/2 {
				return false
			}
		}
	}
	return true
}

// Read copies the sums of a completed step to the batch's Sums. from is the ring's memory from r.At
// on.
func (r *SumRows) Read(from []byte) {
	rows, words := r.rows, r.Words
	if words == r.stride { // the rows are contiguous on both sides
		rows, words = 1, rows*words
	}
	for row := range rows {
		to := r.to[row*r.stride:][:words]
		for i := range to {
			to[i] = binary.LittleEndian.Uint64(from[i*sumBytes:])
		}
		from = from[words*sumBytes:]
	}
}
