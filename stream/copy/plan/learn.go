package plan

import (
	"math"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/stream"
)

// driftAfter and driftBy define when a profile is outdated: driftAfter is the minimum number of
// recent observations of a path, and driftBy the minimum difference between paths, as a logarithm.
const driftAfter = 32

var driftBy = math.Log(1.25)

// learned holds the corrections of a profile's predictions, and statistics.
type learned struct {
	clock clockwork.Clock
	epoch time.Time
	half  time.Duration

	mu          sync.Mutex
	corrections corrections
	paths       [directions][stream.PathCount]history
	traffic
}

// history holds the correction and the statistics of one path in one direction, over all classes of
// batches.
type history struct {
	correction
	stats PathStats
}

// PathStats counts the choices of a path and their outcomes.
type PathStats struct {
	Path stream.Path
	Dir  Direction
	// Choices counts the choices of the path, and Observed those with a known duration. Predicted
	// and Actual are sums over the latter.
	Choices, Observed int64
	Predicted, Actual time.Duration
	// Scale is the recent ratio of actual to profiled time. Without observations it returns to 1.
	Scale float64
}

func (l *learned) init(clock clockwork.Clock, half time.Duration) {
	l.clock, l.epoch, l.half = clock, clock.Now(), half
}

func (l *learned) now() time.Duration { return l.clock.Since(l.epoch) }

// class returns the class of r if it starts now. The caller holds the mutex.
func (l *learned) class(r *Request, now time.Duration) batchClass {
	return classOf(r, l.opposed(r.Dir, now))
}

// scales holds the correction factors of predictions by path.
type scales [stream.PathCount]float64

// scales sets s to the corrections of the paths in can for batches of class c, and to 1 for other
// paths. The caller holds the mutex.
func (l *learned) scales(c batchClass, can Paths, now time.Duration, s *scales) {
	all := l.corrections.of(c)
	for p := range s {
		if s[p] = 1; can.Has(stream.Path(p)) {
			_, s[p] = all[p].faded(now, l.half)
		}
	}
}

// Observe corrects later predictions by the duration of a completed batch. actual starts at the
// start of the batch or at the end of the previous batch, whichever is later. Do not pass batches
// that failed or were canceled.
func (p *Planner) Observe(c Choice, r Request, actual time.Duration) {
	if actual <= 0 || c.Predicted <= 0 || c.scale <= 0 || c.Path >= stream.PathCount || r.Dir >= directions {
		return
	}
	if p.budget != nil && p.policy.Goal.Weighs() && c.CTAs > 0 && !c.class.opposed {
		p.budget.AddDuration(actual, time.Duration(float64(c.Predicted)/c.scale))
	}
	l := &p.learned
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	h := &l.paths[r.Dir][c.Path]
	h.stats.Observed++
	h.stats.Predicted += c.Predicted
	h.stats.Actual += actual
	if opposed := l.ends(r.Dir, now, actual); opposed != c.class.opposed {
		return // the prediction was for the other class
	}
	observed := math.Log(float64(actual) / float64(c.Predicted) * c.scale)
	h.add(observed, now, l.half)
	l.corrections.of(c.class)[c.Path].add(observed, now, l.half)
}

// Drift describes a path whose times differ from the profile by Factor while those of other paths
// do not.
type Drift struct {
	Path   stream.Path
	Dir    Direction
	Factor float64
}

// Drifted reports whether the profile should be measured again: a path is faster than measured, or
// the ratio of two paths with enough recent observations has changed. If all paths are slower by
// the same factor, another tenant uses the link and the profile stays valid.
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

// Stats returns the statistics of every path that was chosen, by direction and path.
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
