package plan

import (
	"slices"
	"sort"

	"github.com/kvlane/kvlane/stream"
)

// Model predicts one path with one number of thread blocks, in one direction, from measured times.
type Model struct {
	Path stream.Path
	CTAs int // thread blocks; zero for a path without
	Dir  Direction
	Side Side

	// Times are what batches take alone, in nanoseconds: Profile.Counts[k] copies of Profile.Sizes[i] bytes at
	// i·len(Counts)+k. They do not fall as the count grows.
	Times []float64
	// Lead is how much of a batch's time passes while the batch before it still copies, in nanoseconds; of a short one it is
	// mostLead of its time at most.
	Lead float64
	// Duplex is what each byte takes longer while as much goes the opposite way by the same path, in nanoseconds.
	Duplex float64
	// Spread is how far repeated measurements lay apart, relative to their median, in the typical case: 0.1 is 10%.
	Spread float64
	// Points is how many of Times were measured; zero where the model is of another machine.
	Points int
}

// place is where a value lies among the ascending steps of a profile: frac of the way from step i to step i+1, more than
// all of it beyond the last.
type place struct {
	i    int
	frac float64
}

// locate finds v. Below the first step it is at the first.
func locate(steps []int64, v float64) place {
	last := len(steps) - 1
	if v <= float64(steps[0]) {
		return place{}
	}
	i := min(sort.Search(last, func(i int) bool { return float64(steps[i+1]) > v }), last-1)
	low, high := float64(steps[i]), float64(steps[i+1])
	return place{i, (v - low) / (high - low)}
}

// spot is where n copies of a size lie among a profile's counts and sizes.
type spot struct {
	count, size place
	width       int // counts a size
}

// locate finds n copies of size bytes. What is larger than the largest size counts as so many more of that size.
func (p *Profile) locate(n, size float64) spot {
	if last := float64(p.Sizes[len(p.Sizes)-1]); size > last {
		n, size = n*size/last, last
	}
	return spot{locate(p.Counts, n), locate(p.Sizes, size), len(p.Counts)}
}

// time returns what a batch at s takes alone: on straight lines between what was measured. A cost a copy and a cost a byte
// lie on such lines; what bends, as the start of many warps at once does, lies a little below them.
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

// Rows are worth a call where there are so many of them, and take a copy engine so long each, in nanoseconds, however short they are (H100:
// 8 KiB at 41 to 44 GB/s). What they take longer beside a model is learned.
const (
	leastRows = 16
	rowNanos  = 190
)

// load is a request as models see it.
type load struct {
	pieces, runs, host             spot
	rows                           float64 // what rows take at least; zero where the host side has none
	piecesScattered, runsScattered float64 // how scattered the host side is: 0 contiguous, 1 a run each
	opposed                        float64 // bytes that meet as many that go the opposite way
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

// scattered is the share of n copies that begin a new run on the host's side, the first left out.
func scattered(hostRuns, n int) float64 {
	if hostRuns <= 1 || n <= 1 {
		return 0
	}
	return min(1, float64(hostRuns-1)/float64(n-1))
}

// perRun reports whether the path is asked once a run of neighbouring extents, not once a piece.
func perRun(p stream.Path) bool {
	switch p {
	case stream.PathCopyEngine, stream.PathNIC, stream.PathNICSoft:
		return true
	default:
		return false
	}
}

// stagedIdle is how many of staged copies' thread blocks count as one: they work for one part in so many of the time, as device
// memory is that much faster than the bus, and are gone for the rest.
const stagedIdle = 32

// footprint is what a path takes away from computing, in thread blocks that never rest.
func footprint(p stream.Path, ctas int) int {
	if p == stream.PathStaged {
		return (ctas + stagedIdle - 1) / stagedIdle
	}
	return ctas
}

// mostLead bounds the part of a short batch's time that may pass while the one before it copies.
const mostLead = 0.75

// candidate is a path with a number of thread blocks, as it is predicted: a model for each side, the same one twice where
// only one was measured.
type candidate struct {
	path   stream.Path
	ctas   int
	taken  int     // footprint
	harm   float64 // what it takes from work beside it
	perRun bool
	widest bool // no other of the path has more thread blocks
	model  [sides]*Model
	// engine is what carries the host side of a staged copy; nil for others.
	engine *Model
}

// time returns what l takes alone, what opposite traffic adds to that, and the lead, all unscaled.
func (c *candidate) time(l *load) (alone, met, lead float64) {
	at, mix := l.pieces, l.piecesScattered
	if c.perRun {
		at, mix = l.runs, l.runsScattered
	}
	if c.engine != nil && c.model[Scattered] == c.model[Contiguous] {
		// The gather, or the engine that makes a copy of each of the host's runs meanwhile, whichever is slower.
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

// rising reports whether times, by count, never fall and end in growth: without that a long enough batch would be for
// nothing.
func rising(row []float64) bool {
	n := len(row)
	return slices.IsSorted(row) && row[n-1] > row[n-2]
}
