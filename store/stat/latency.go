// Package stat counts times and copied bytes. All types are safe for concurrent use.
package stat

import (
	"sync/atomic"
	"time"
)

// LatencyBounds are the upper bounds of the buckets of a Latency: 10 us to 10 s in steps of 1, 2
// and 5. An additional bucket counts longer times.
var LatencyBounds = [...]time.Duration{
	10 * time.Microsecond, 20 * time.Microsecond, 50 * time.Microsecond,
	100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond,
	10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
}

// Latency is a histogram of times.
type Latency struct {
	// Counts[i] is the number of times up to LatencyBounds[i] that exceed the previous bound.
	Counts [len(LatencyBounds) + 1]int64
	Sum    time.Duration
}

// Histogram counts times in buckets. An observation is two atomic additions and allocates nothing.
type Histogram struct {
	counts [len(LatencyBounds) + 1]atomic.Int64
	sum    atomic.Int64
}

// Observe counts one time. Negative times count as zero.
func (h *Histogram) Observe(d time.Duration) {
	i := 0
	for i < len(LatencyBounds) && d > LatencyBounds[i] {
		i++
	}
	h.counts[i].Add(1)
	h.sum.Add(int64(max(0, d)))
}

// Read returns the counts. Concurrent observations may be included partially.
func (h *Histogram) Read() (out Latency) {
	for i := range h.counts {
		out.Counts[i] = h.counts[i].Load()
	}
	out.Sum = time.Duration(h.sum.Load())
	return out
}
