package plan

import "time"

// Pacer spreads work over time: work starts only when the sum of the paces of earlier work has
// passed. The zero value is ready. It is not safe for concurrent use.
type Pacer struct {
	free time.Time // end of the time assigned to all earlier work
}

// paceSlack is the tolerance for work that starts early or late. Timers usually fire up to a
// millisecond late, which must not delay all later work.
const paceSlack = 2 * time.Millisecond

// Next returns the time to wait from now until work with this pace may start, and counts the work
// as started at that time. Idle time is not saved up: a burst after a pause is paced as well.
func (p *Pacer) Next(now time.Time, pace time.Duration) time.Duration {
	start := now
	if p.free.After(now.Add(-paceSlack)) {
		start = p.free
	}
	p.free = start.Add(pace)
	return max(0, start.Sub(now)-paceSlack)
}
