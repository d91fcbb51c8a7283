package plan

import (
	"math"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/stream"
)

// driftAfter and driftBy say when the profile is called outdated: after so many observations in a row that were not
// too old, when paths that should cost the same differ by so much.
const driftAfter = 32

var driftBy = math.Log(1.25)

// learned is what observations add to a profile.
type learned struct {
	clock clockwork.Clock
	epoch time.Time
	half  time.Duration

	mu    sync.Mutex
	cells [directions][situations]*cells // made when first observed
	paths [directions][stream.PathCount]history
	traffic
}

// history is of one path in one direction, in whatever cell.
type history struct {
	memory
	stats PathStats
}

// PathStats counts what was chosen and what came of it.
type PathStats struct {
	Path stream.Path
	Dir  Direction
	// Choices is how often the path was chosen, Observed how many of those had an outcome; the two times are the sums over
	// those that had.
	Choices, Observed int64
	Predicted, Actual time.Duration
	// Scale is what the path takes lately, as a multiple of what the profile says; 1 where it was not seen lately.
	Scale float64
}

func (l *learned) init(clock clockwork.Clock, half time.Duration) {
	l.clock, l.epoch, l.half = clock, clock.Now(), half
}

func (l *learned) now() time.Duration { return l.clock.Since(l.epoch) }

// key returns the cell of r, for a batch that is chosen now. The caller holds the mutex.
func (l *learned) key(r *Request, now time.Duration) cellKey {
	return cellOf(r, l.opposed(r.Dir, now))
}

// cell returns the cell of k, or nil where nothing was ever seen there.
func (l *learned) cell(k cellKey) *cell {
	c := l.cells[k.dir][k.situation]
	if c == nil {
		return nil
	}
	return &c[k.size][k.count]
}

// scales are the factors of predictions, by path.
type scales [stream.PathCount]float64

// scales sets s to what was learned in c, which may be nil, for the paths in can.
func (l *learned) scales(c *cell, can Paths, now time.Duration, s *scales) {
	for p := range s {
		if s[p] = 1; c != nil && can.Has(stream.Path(p)) {
			_, s[p] = c[p].faded(now, l.half)
		}
	}
}

// Observe tells what became of a choice: actual is the time from the batch's start, or from the end of what was before
// it if that was later, to its end. Batches that failed or were cancelled are not to be observed.
func (p *Planner) Observe(c Choice, r Request, actual time.Duration) {
	if actual <= 0 || c.Predicted <= 0 || c.scale <= 0 || c.Path >= stream.PathCount || r.Dir >= directions {
		return
	}
	if p.budget != nil && p.policy.Goal.Weighs() && c.CTAs > 0 && !c.cell.duplex() {
		p.budget.Took(actual, time.Duration(float64(c.Predicted)/c.scale))
	}
	l := &p.learned
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	h := &l.paths[r.Dir][c.Path]
	h.stats.Observed++
	h.stats.Predicted += c.Predicted
	h.stats.Actual += actual
	if met := l.ends(r.Dir, now, actual); met != c.cell.duplex() {
		return // another situation than predicted
	}
	seen := math.Log(float64(actual) / float64(c.Predicted) * c.scale)
	h.add(seen, now, l.half)
	all := &l.cells[c.cell.dir][c.cell.situation]
	if *all == nil {
		*all = new(cells)
	}
	(*all)[c.cell.size][c.cell.count][c.Path].add(seen, now, l.half)
}

// Drift is a path that takes longer or shorter than the profile says, by Factor, while others do not.
type Drift struct {
	Path   stream.Path
	Dir    Direction
	Factor float64
}

// Drifted reports whether the profile should be measured anew: some path is faster than it was when measured, or two
// paths seen lately, often enough, have moved apart. All of them slower by the same factor is another tenant on the link;
// it says nothing about the profile.
func (p *Planner) Drifted() (Drift, bool) {
	l := &p.learned
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for d := range l.paths {
		low, high := -1, -1
		for q := range l.paths[d] {
			h := &l.paths[d][q]
			if !h.fresh(now, l.half) || h.n < driftAfter {
				continue
			}
			if low < 0 || h.average < l.paths[d][low].average {
				low = q
			}
			if high < 0 || h.average > l.paths[d][high].average {
				high = q
			}
		}
		if low < 0 {
			continue
		}
		at := func(q int) (Drift, bool) {
			return Drift{stream.Path(q), Direction(d), l.paths[d][q].factor}, true
		}
		switch {
		case l.paths[d][low].average < -driftBy:
			return at(low)
		case l.paths[d][high].average-l.paths[d][low].average > driftBy:
			return at(high)
		}
	}
	return Drift{}, false
}

// Stats returns the figures of every path that was ever chosen, by direction and path.
func (p *Planner) Stats() []PathStats {
	l := &p.learned
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []PathStats
	for d := range l.paths {
		for q := range l.paths[d] {
			h := &l.paths[d][q]
			if h.stats.Choices == 0 {
				continue
			}
			s := h.stats
			s.Path, s.Dir = stream.Path(q), Direction(d)
			_, s.Scale = h.faded(now, l.half)
			all = append(all, s)
		}
	}
	return all
}
