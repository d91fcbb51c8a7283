package plan

import (
	"slices"
	"sort"

	"github.com/kvlane/kvlane/stream"
)

// Model predicts the times of one path with one number of thread blocks, in one direction, from
// measured times.
type Model struct {
	Path stream.Path
	CTAs int // thread blocks; zero for a path without them
	Dir  Direction
	Side Side

	// Times holds the times of single batches, in nanoseconds. Entry i*len(Counts)+k is the time of
	// Profile.Counts[k] copies of Profile.Sizes[i] bytes. Times do not decrease as the count grows.
	Times []float64
	// Lead is the share of a batch's time that overlaps the previous batch, in
	// nanoseconds. For a short batch it is at most mostLead of its time.
	Lead float64
	// Duplex is the additional time of each byte, in nanoseconds, while as many bytes are copied in
	// the opposite direction by the same path.
	Duplex float64
	// Spread is the typical spread of repeated measurements, relative to their median: 0.1 is 10%.
	Spread float64
	// Points is the number of measured entries of Times. It is zero if the model was measured on
	// another machine.
	Points int
}

// place is the position of a value among the ascending steps of a profile: between steps i and i+1,
// at fraction frac. Beyond the last step frac exceeds 1.
type place struct {
	i    int
	frac float64
}

// locate returns the place of v. Values below the first step are placed at the first step.
func locate(steps []int64, v float64) place {
	last := len(steps) - 1
	if v <= float64(steps[0]) {
		return place{}
	}
	i := min(sort.Search(last, func(i int) bool { return float64(steps[i+1]) > v }), last-1)
	low, high := float64(steps[i]), float64(steps[i+1])
	return place{i, (v - low) / (high - low)}
}

// spot is the position of n copies of a size among a profile's counts and sizes.
type spot struct {
	count, size place
	width       int // counts per size
}

// locate returns the spot of n copies of size bytes. A copy larger than the largest size counts as
// several copies of that size.
func (p *Profile) locate(n, size float64) spot {
	if last := float64(p.Sizes[len(p.Sizes)-1]); size > last {
		n, size = n*size/last, last
	}
	return spot{locate(p.Counts, n), locate(p.Sizes, size), len(p.Counts)}
}

// time returns the predicted time of a batch at s without other traffic, interpolated linearly
// between measured times. Costs per copy and per byte are linear. Other costs, such as the
// concurrent start of many warps, are slightly below the interpolation.
func (m *Model) time(s spot) float64 {
	at := s.size.i*s.width + s.count.i
	t := between(m.Times[at:], s.count.frac)
	if s.size.frac > 0 {
		t += s.size.frac * (between(m.Times[at+s.width:], s.count.frac) - t)
	}
	return t
}

func between(t []float64, frac float64) float64 { return t[0] + frac*(t[1]-t[0]) }

// row returns the times of size i by count.
func (m *Model) row(i, counts int) []float64 { return m.Times[i*counts : (i+1)*counts] }

// The model counts rows of runs on the host instead of runs if a row has at least leastRows runs on
// average. A copy engine then needs at least rowNanos for each run, even a short one (H100: 8 KiB
// at 41 to 44 GB/s). The constants do not include the effect of concurrent computation, which the
// planner's corrections include.
const (
	leastRows = 16
	rowNanos  = 190
)

// load is a request in the form that models use.
type load struct {
	pieces, runs, host spot
	rows               float64 // minimum time of the rows; zero if the host side has no rows
	// scatter of the host side: 0 is contiguous, 1 is one run per copy
	piecesScattered, runsScattered float64
	opposed                        float64 // bytes that are copied while as many are copied in the opposite direction
}

func (p *Profile) load(r *Request, duplex bool, l *load) {
	pieces, runs, hostRuns := max(r.Pieces, 1), r.Runs, r.HostRuns
	if runs <= 0 {
		runs = pieces
	}
	if hostRuns <= 0 {
		hostRuns = pieces
	}
	bytes := float64(r.Bytes)
	at := func(n int) spot { return p.locate(float64(n), bytes/float64(n)) }
	l.pieces = at(pieces)
	l.runs, l.host = l.pieces, l.pieces
	if runs != pieces {
		l.runs = at(runs)
	}
	if n := r.HostRows; n > 0 && leastRows*n <= hostRuns {
		l.host, l.rows = at(n), float64(rowNanos*hostRuns)
	} else if hostRuns != pieces {
		l.host = at(hostRuns)
	}
	l.piecesScattered, l.runsScattered = scattered(hostRuns, pieces), scattered(hostRuns, runs)
	if duplex {
		l.opposed = bytes
	}
}

// scattered returns the share of n copies, without the first, that start a new run on the host
// side.
func scattered(hostRuns, n int) float64 {
	if hostRuns <= 1 || n <= 1 {
		return 0
	}
	return min(1, float64(hostRuns-1)/float64(n-1))
}

// perRun reports whether the path copies runs of adjacent extents instead of pieces.
func perRun(p stream.Path) bool {
	switch p {
	case stream.PathCopyEngine, stream.PathNIC, stream.PathNICSoft:
		return true
	default:
		return false
	}
}

// stagedIdle is the number of thread blocks of staged copies that count as one. They are busy for
// one stagedIdle-th of the time, because device memory is that much faster than the bus.
const stagedIdle = 32

// footprint returns the device use of a path, as the number of thread blocks that would be always
// busy.
func footprint(p stream.Path, ctas int) int {
	if p == stream.PathStaged {
		return (ctas + stagedIdle - 1) / stagedIdle
	}
	return ctas
}

// mostLead bounds the share of a short batch's time that can overlap the previous batch.
const mostLead = 0.75

// candidate is a path with a number of thread blocks and its models by side. If only one side was
// measured, its model is used for both.
type candidate struct {
	path         stream.Path
	ctas         int
	taken        int     // footprint
	interference float64 // share of its rate that concurrent work loses
	perRun       bool
	widest       bool // no other candidate of the path has more thread blocks
	model        [sides]*Model
	// engine is the copy engine's model, for the host side of a staged copy; nil for other paths.
	engine *Model
}

// time returns the time of l without other traffic, the additional time due to opposite traffic,
// and the lead. It does not apply corrections.
func (c *candidate) time(l *load) (alone, opposite, lead float64) {
	at, mix := l.pieces, l.piecesScattered
	if c.perRun {
		at, mix = l.runs, l.runsScattered
	}
	if c.engine != nil && c.model[Scattered] == c.model[Contiguous] {
		// Gathering overlaps with copying the host's runs by copy engine, so the slower of the two
		// counts.
		m := c.model[Contiguous]
		alone, lead = max(m.time(at), c.engine.time(l.host), l.rows), m.Lead
		return alone, l.opposed * m.Duplex, min(lead, mostLead*alone)
	}
	m := c.model[Contiguous]
	if mix == 1 {
		m = c.model[Scattered]
	}
	alone, lead = m.time(at), m.Lead
	if other := c.model[Scattered]; other != m && mix > 0 {
		alone += mix * (other.time(at) - alone)
		lead += mix * (other.Lead - lead)
	}
	return alone, l.opposed * m.Duplex, min(lead, mostLead*alone)
}

// rising reports whether times, by count, never decrease and grow at the end. Without growth,
// further copies would take no time.
func rising(row []float64) bool {
	n := len(row)
	return slices.IsSorted(row) && row[n-1] > row[n-2]
}
