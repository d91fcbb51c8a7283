package plan

import (
	"math"
	"math/bits"
	"time"

	"github.com/kvlane/kvlane/stream"
)

// Batches are alike, for learning, that have the same direction and form, whose sizes and counts are within a factor of
// four, and that meet the same situation.
const (
	sizeCells  = 9 // from 256 B on
	countCells = 9 // from one copy on
)

// The situations, as bits: paged, the host side mostly contiguous, behind other batches, the opposite direction busy.
const (
	situationPaged = 1 << iota
	situationContiguous
	situationBacklog
	situationDuplex
	situations
)

// cellKey names the cell of a batch.
type cellKey struct {
	dir       Direction
	situation uint8
	size      uint8
	count     uint8
}

// cellOf returns the cell of r. duplex: the direction opposite to r's is busy too.
func cellOf(r *Request, duplex bool) cellKey {
	pieces := max(r.Pieces, 1)
	k := cellKey{
		dir:   r.Dir,
		size:  uint8(min(max(bits.Len64(uint64(r.Bytes)/uint64(pieces))-8, 0)/2, sizeCells-1)),
		count: uint8(min(bits.Len(uint(pieces))/2, countCells-1)),
	}
	for _, s := range [...]struct {
		flag uint8
		is   bool
	}{
		{situationPaged, r.Form == Paged},
		{situationContiguous, r.HostRuns > 0 && 4*r.HostRuns <= pieces},
		{situationBacklog, r.Ahead > 0},
		{situationDuplex, duplex},
	} {
		if s.is {
			k.situation |= s.flag
		}
	}
	return k
}

// duplex reports whether the opposite direction is busy too.
func (k cellKey) duplex() bool { return k.situation&situationDuplex != 0 }

// cells are those of one direction in one situation.
type cells [sizeCells][countCells]cell

// cell is what was seen of the paths with batches that are alike.
type cell [stream.PathCount]memory

// memory is a decayed average of log(actual/profile's prediction).
type memory struct {
	average float64
	factor  float64       // its exponential
	off     float64       // how far the last observation was off the average before it
	seen    time.Duration // when the last observation was, by learned.now
	n       int           // observations since it was last forgotten; zero: never seen
}

const (
	// gain is the least weight of a new observation; the first ones weigh more.
	gain = 0.0625
	// bound is of the average itself.
	bound = 10 * math.Ln2
)

// mostOff bounds how far off one observation counts: a batch that was held up says little of the next.
var mostOff = math.Log(1.5)

// add adds an observation, as far as the one before it agrees: a path that is slow once would otherwise be left for another, and nobody would
// hear that it is fast again. What was seen long ago counts as the profile's word does.
func (m *memory) add(seen float64, now, half time.Duration) {
	if !m.fresh(now, half) {
		m.average, _ = m.faded(now, half)
		m.n, m.off = 0, 0
	}
	m.n++
	before := m.off
	m.off = min(max(seen-m.average, -mostOff), mostOff)
	m.average += max(gain, 1/float64(m.n)) * agreed(before, m.off)
	m.average = min(max(m.average, -bound), bound)
	m.factor, m.seen = math.Exp(m.average), now
}

// agreed is what two values have in common: the smaller one, or nothing where one is up and the other down.
func agreed(a, b float64) float64 {
	if a > 0 {
		return max(min(a, b), 0)
	}
	return min(max(a, b), 0)
}

// fresh reports whether m was seen no longer than half ago.
func (m *memory) fresh(now, half time.Duration) bool { return m.n > 0 && now-m.seen <= half }

// faded returns what is left of the average, and its exponential: all of it for as long as half, from then on half as much
// with each further half.
func (m *memory) faded(now, half time.Duration) (average, factor float64) {
	switch {
	case m.n == 0:
		return 0, 1
	case m.fresh(now, half):
		return m.average, m.factor
	}
	average = m.average * math.Exp2(1-float64(now-m.seen)/float64(half))
	return average, math.Exp(average)
}
