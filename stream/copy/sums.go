package copy

import (
	"encoding/binary"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// sumBytes is the size of one sum, in the ring as in mem.Paged.Sums.
const sumBytes = 8

// sumRows is where a launch leaves its sums: one row a pair, of words for the planes of the launch. They wait in the ring
// until the step's event is done, and go to mem.Paged.Sums then: kernels write pinned memory, and Sums is the caller's.
type sumRows struct {
	at          uint64   // position in the ring
	to          []uint64 // Sums from the first row on
	rows, words int
	stride      int // words from row to row of Sums
}

// leavesOf returns how many leaves one page of planes has.
func leavesOf(planes []mem.Plane) int {
	n := 0
	for i := range planes {
		n += int(planes[i].Bytes / mem.LeafBytes)
	}
	return n
}

// rows says where the sums of the next n pairs go, for words leaves of the planes from c.plane on.
func (c *cursor) rows(g *mem.PageGroup, words, n int, at uint64) sumRows {
	stride := leavesOf(g.Planes)
	return sumRows{
		at: at, to: c.batch.Paged.Sums[c.sums+c.pair*stride+leavesOf(g.Planes[:c.plane]):],
		rows: n, words: words, stride: stride,
	}
}

// strides writes into the planes that were described how many sums a pair has.
func (t *table) strides(ps planeSet) {
	for i := range ps.n {
		d := t.buf[i*device.PlaneSumDescBytes:]
		at := device.ReadPlaneSums(d)
		at.Stride = uint64(ps.leaves)
		at.Put(d)
	}
}

// sumsFit reports whether a ring of such spans has room for the sums of any one page of any one plane.
func sumsFit(p *mem.Paged, span uint64) bool {
	const around = device.PlaneSumDescBytes + device.PairBytes + 3*tableAlign
	for i := range p.Groups {
		for j := range p.Groups[i].Planes {
			if leaves := uint64(p.Groups[i].Planes[j].Bytes / mem.LeafBytes); leaves*sumBytes+around > span/2 {
				return false
			}
		}
	}
	return true
}

// collect copies the sums of a step that is done to where the batch wants them.
func (s *Stream) collect(it *item) {
	for i := range it.sums {
		r := &it.sums[i]
		if r.words == r.stride { // the rows follow each other on both sides
			r.words, r.rows = r.rows*r.words, 1
		}
		from := s.ring.region.Bytes()[r.at%s.ring.size:]
		for row := range r.rows {
			from = readWords(r.to[row*r.stride:][:r.words], from)
		}
	}
}

// readWords fills to with what kernels wrote, and returns what follows.
func readWords(to []uint64, from []byte) []byte {
	words := from[:len(to)*sumBytes]
	for i := range to {
		to[i] = binary.LittleEndian.Uint64(words[i*sumBytes:])
	}
	return from[len(words):]
}
