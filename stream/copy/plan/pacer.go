package plan

import "time"

// Pacer spreads work over time: it keeps the sum of the paces of what was begun from running ahead of the clock. The zero
// value is ready. It is for one goroutine.
type Pacer struct {
	free time.Time // when what was begun so far has had its share
}

// paceSlack is how late and how early work may begin and still be counted as begun when it was due. Timers fire late, by a
// millisecond as most do: that must neither make everything after it late, nor leave the link idle meanwhile.
const paceSlack = 2 * time.Millisecond

// Next returns how long to wait from now until work that is to take pace may begin, and counts it as begun when it is due. A
// pacer that was idle has saved up next to nothing: a burst after a pause is paced like any other.
func (p *Pacer) Next(now time.Time, pace time.Duration) time.Duration {
	start := now
	if p.free.After(now.Add(-paceSlack)) {
		start = p.free
	}
	p.free = start.Add(pace)
	return max(0, start.Sub(now)-paceSlack)
}
