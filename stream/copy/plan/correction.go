package plan

import (
	"math"
	"time"

	"github.com/kvlane/kvlane/stream"
)

// batchClass is the set of batches that share corrections.
type batchClass struct {
	dir     Direction
	opposed bool // the opposite direction is busy
	size    uint8
}

// The start-up time dominates batches of up to smallBytes, and the path's rate batches of more than
// mediumBytes. Batches in between form a third class.
const (
	smallBytes  = 256 << 10
	mediumBytes = 4 << 20
	sizeClasses = 3
)

func classOf(r *Request, opposed bool) batchClass {
	c := batchClass{dir: r.Dir, opposed: opposed}
	switch {
	case r.Bytes > mediumBytes:
		c.size = 2
	case r.Bytes > smallBytes:
		c.size = 1
	}
	return c
}

// corrections holds a correction for each path and class.
type corrections [directions][2][sizeClasses][stream.PathCount]correction

// of returns the corrections of c by path.
func (all *corrections) of(c batchClass) *[stream.PathCount]correction {
	opposed := 0
	if c.opposed {
		opposed = 1
	}
	return &all[c.dir][opposed][c.size]
}

// correction is a decayed average of log(actual time / profiled time). The zero value has no
// effect.
type correction struct {
	average float64
	factor  float64       // exp(average)
	off     float64       // difference between the last observation and the previous average
	seen    time.Duration // time of the last observation, by learned.now
	n       int           // observations since the average last faded
}

const (
	// gain is the weight of an observation. The first observations have more weight.
	gain = 0.0625
	// maxAverage bounds the average.
	maxAverage = 10 * math.Ln2
)

// add adds an observation. It counts only as far as the previous observation confirms it. Otherwise
// one slow batch could move all batches to another path, and the average would not recover.
func (m *correction) add(observed float64, now, half time.Duration) {
	if !m.fresh(now, half) {
		m.average, _ = m.faded(now, half)
		m.n, m.off = 0, 0
	}
	m.n++
	before := m.off
	m.off = observed - m.average
	m.average += max(gain, 1/float64(m.n)) * common(before, m.off)
	m.average = min(max(m.average, -maxAverage), maxAverage)
	m.factor, m.seen = math.Exp(m.average), now
}

// common returns the value that is closer to zero, or zero if the signs differ.
func common(a, b float64) float64 {
	if a > 0 {
		return max(min(a, b), 0)
	}
	return min(max(a, b), 0)
}

// fresh reports whether the last observation is at most half old.
func (m *correction) fresh(now, half time.Duration) bool { return m.n > 0 && now-m.seen <= half }

// faded returns the average and its exponential. After a time of half since the last observation,
// the average halves with each further half.
func (m *correction) faded(now, half time.Duration) (average, factor float64) {
	switch {
	case m.n == 0:
		return 0, 1
	case m.fresh(now, half):
		return m.average, m.factor
	}
	average = m.average * math.Exp2(1-float64(now-m.seen)/float64(half))
	return average, math.Exp(average)
}
