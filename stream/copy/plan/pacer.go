package plan

import "time"

// Pacer spreads work over time: it keeps the sum of the paces of what was begun from running ahead of the clock. The zero
// value is ready. It is for one goroutine.
type Pacer struct {
	free time.Time // when what was begun so far has had its share
}

// Next returns how long to wait from now until work that is to take pace may begin, and counts it as begun then. A pacer
// that was idle has saved up nothing: a burst after a pause is paced like any other.
func (p *Pacer) Next(now time.Time, pace time.Duration) time.Duration {
	start := now
	if p.free.After(now) {
		start = p.free
	}
	p.free = start.Add(pace)
	return start.Sub(now)
}
