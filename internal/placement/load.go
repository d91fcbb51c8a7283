package placement

import (
	"sync/atomic"
	"time"
)

// loadLife is the time for which the latency of a request counts.
const loadLife = time.Second

// Load measures the requests of one client to a server. Its methods are safe for concurrent use.
// The zero value is ready.
type Load struct {
	waiting atomic.Int64 // requests in progress
	mean    atomic.Int64 // latency in nanoseconds
	last    atomic.Int64 // time of the last answer, in nanoseconds
}

// Begin notes the begin of a request.
func (l *Load) Begin() { l.waiting.Add(1) }

// End notes the end of a request. latency is zero if it was not answered.
func (l *Load) End(latency time.Duration, now time.Time) {
	l.waiting.Add(-1)
	if latency <= 0 {
		return
	}
	mean := int64(latency)
	if !l.idle(now) {
		mean = l.mean.Load() + (mean-l.mean.Load())/8
	}
	l.mean.Store(mean)
	l.last.Store(now.UnixNano())
}

func (l *Load) idle(now time.Time) bool { return now.UnixNano()-l.last.Load() > int64(loadLife) }

// Score returns the expected time of a request, for Choose. A server without recent requests is
// assumed to be fast, so that it is tried.
func (l *Load) Score(now time.Time) float64 {
	waiting := float64(l.waiting.Load() + 1)
	if l.idle(now) {
		return waiting
	}
	return waiting * float64(l.mean.Load()+1)
}
