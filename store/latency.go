package store

import (
	"sync/atomic"
	"time"
)

// LatencyBounds are the upper bounds of the buckets of a Latency, 10 us to 10 s in steps of 1, 2 and 5; one more bucket holds what took longer.
var LatencyBounds = [...]time.Duration{
	10 * time.Microsecond, 20 * time.Microsecond, 50 * time.Microsecond, 100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
}

// Latency is how often something was timed, by how long it took, and the sum of the times.
type Latency struct {
	Counts [len(LatencyBounds) + 1]int64 // Counts[i] took LatencyBounds[i] at most, and longer than the bound before
	Sum    time.Duration
}

// latency counts times into buckets, for all that a store times: an observation is two atomic additions and allocates nothing. The exact
// quantiles of a replay's report are of its own requests; a histogram that has them (HdrHistogram) takes a lock and 170 KB.
type latency struct {
	counts [len(LatencyBounds) + 1]atomic.Int64
	sum    atomic.Int64
}

func (l *latency) observe(d time.Duration) {
	i := 0
	for i < len(LatencyBounds) && d > LatencyBounds[i] {
		i++
	}
	l.counts[i].Add(1)
	l.sum.Add(int64(max(0, d)))
}

// read returns the figures of now, which are not of one instant.
func (l *latency) read() (out Latency) {
	for i := range l.counts {
		out.Counts[i] = l.counts[i].Load()
	}
	out.Sum = time.Duration(l.sum.Load())
	return out
}
