package plan

import (
	"math"
	"math/bits"
	"time"
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
type cell struct {
	paths [pathLimit]memory
	// common is what paths seen lately share: where all of them were slower the least of it, where all were faster the
	// same, else nothing. Of one path alone it is mostAlone at most.
	common memory
	// incumbent is what was chosen last that was no probe.
	incumbent variant
	// repeat is what may be chosen again without a look at everything.
	repeat repeat
	// credit is what trying other paths may cost now, in nanoseconds: a share of what batches took here. Negative: it has
	// cost too much already.
	credit float64
}

// repeat is a choice for a request whose like was seen often enough. It is taken for some more that are the same, as a small
// batch takes not much longer than choosing does.
type repeat struct {
	by     *Planner
	r      Request
	can    Paths
	choice Choice
	left   int
}

// repeats is how many batches take the same choice before everything is looked at again. They are observed only if they take
// much longer than predicted, or shorter, which ends it.
const repeats = 7

// take returns the choice, if it is one for r.
func (x *repeat) take(p *Planner, r *Request, can Paths) (Choice, bool) {
	if x.left == 0 || x.by != p || x.can != can || x.r != *r {
		return Choice{}, false
	}
	x.left--
	return x.choice, true
}

// variant is a path with a number of thread blocks.
type variant struct {
	path uint8
	ctas int32
}

// memory is an average of log(actual/profile's prediction).
type memory struct {
	average float64
	factor  float64       // its exponential
	seen    time.Duration // when the last observation was, by learned.now
	last    float64       // what it was
	n       int           // observations; zero: never seen
	// surprises is how many observations in a row were far above the average, or, negative, far below; row is when the first
	// of them was.
	surprises int
	row       time.Duration
}

const (
	// gain is the least weight of a new observation: what repeats itself is known to a third of how much single batches
	// scatter. The first ones weigh more.
	gain = 0.0625
	// turned is how many surprises in a row mean that things have changed, and turnedFor how long the row must be: what holds
	// up one short batch may well hold up the next. Then the average begins anew, with the lesser one.
	turned    = 3
	turnedFor = 2 * time.Millisecond
	// surprise is how many times as long as expected, or as short, a batch must take to be one.
	surprise = 1.2
	// bound is of the average itself.
	bound = 10 * math.Ln2
)

var (
	// mostAlone bounds how much of one path's being slow is taken to be everybody's. Batches are disturbed, and disturbed ones
	// are slower: without that, a path that is in use would look a few percent worse than every one that is not.
	mostAlone = math.Log(1.15)
	// surprising is how far from the average an observation is a surprise.
	surprising = math.Log(surprise)
)

// expected counts an observation that was about the average.
func (m *memory) expected(now time.Duration) {
	m.n++
	m.seen, m.surprises = now, 0
}

// add takes an observation; was is what the average was taken to be before. What is far off counts as less, as anything may
// hold a batch up; so often in a row that things have changed it is believed.
func (m *memory) add(seen, was float64, now time.Duration) {
	off := seen - was
	switch {
	case off > surprising:
		m.surprises = max(m.surprises, 0) + 1
	case off < -surprising:
		m.surprises = min(m.surprises, 0) - 1
	default:
		m.surprises = 0
	}
	if m.surprises*m.surprises == 1 {
		m.row = now
	}
	long := now-m.row >= turnedFor
	switch {
	case long && m.surprises >= turned:
		m.average, m.n = min(seen, m.last), 0
	case long && m.surprises <= -turned:
		m.average, m.n = max(seen, m.last), 0
	default:
		weight := max(gain, 1/float64(m.n+2))
		m.average = was + weight*min(max(off, -surprising), surprising)
	}
	m.average = min(max(m.average, -bound), bound)
	m.factor = math.Exp(m.average)
	m.seen, m.last = now, seen
	m.n++
}

// fresh reports whether m was seen no longer than half ago.
func (m *memory) fresh(now, half time.Duration) bool { return m.n > 0 && now-m.seen <= half }

// faded returns what is left of the average, and its exponential: all of it for as long as half, from then on half as much
// with each further half. The rest is what other says.
func (m *memory) faded(now, half time.Duration, other float64) (average, factor float64) {
	if m.fresh(now, half) {
		return m.average, m.factor
	}
	average = other
	if m.n > 0 {
		w := math.Exp2(1 - float64(now-m.seen)/float64(half))
		average += w * (m.average - other)
	}
	if average == 0 {
		return 0, 1
	}
	return average, math.Exp(average)
}

// path returns what is to be expected of path p against the profile.
func (c *cell) path(p int, now, half time.Duration) (average, factor float64) {
	if m := &c.paths[p]; m.fresh(now, half) {
		return m.average, m.factor
	}
	other, _ := c.common.faded(now, half, 0)
	return c.paths[p].faded(now, half, other)
}

// observe adds an observation of path p.
func (c *cell) observe(p int, seen float64, now, half time.Duration) {
	m := &c.paths[p]
	was, _ := c.path(p, now, half)
	if !m.fresh(now, half) {
		m.n = 0
	}
	m.add(seen, was, now)

	low, high, n := math.Inf(1), math.Inf(-1), 0
	for i := range c.paths {
		if m := &c.paths[i]; m.fresh(now, half) {
			low, high, n = min(low, m.average), max(high, m.average), n+1
		}
	}
	shared := 0.0
	switch {
	case n < 2:
		shared = min(max(low, 0), mostAlone)
	case low > 0:
		shared = low
	case high < 0:
		shared = high
	}
	if shared == 0 {
		c.common = memory{}
		return
	}
	c.common = memory{average: shared, factor: math.Exp(shared), seen: now, n: n}
}
