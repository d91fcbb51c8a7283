// Package stat counts times and copied bytes. All types are safe for concurrent use.
package stat

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/stream"
)

// PathStats counts the copies of one path in one direction.
type PathStats struct {
	Path    stream.Path
	Reason  string // reason of the latest batch on this path
	Batches int64
	Pieces  int64
	Bytes   int64
	// Summed is the number of bytes whose checksum the copy computed.
	Summed int64
	// Busy is the time during which the stream was copying by this path. Time of overlapping
	// batches counts once.
	Busy time.Duration
	// Predicted is the value of Busy that the planner predicted, or zero without a planner.
	Predicted time.Duration
	// Copied is the time of a batch from its first byte to its last. Queued is the time before
	// that, from the call of Submit.
	Copied, Queued Latency
}

// Paths counts the completions of one direction by path. The zero value is ready for use.
type Paths struct {
	mu      sync.Mutex
	paths   []*pathTally // few, in order of appearance
	lastEnd time.Time    // latest Completion.Finished
	givenUp int64        // number of times that a stream stopped using a path
	cause   error        // of the latest time
}

type pathTally struct {
	PathStats
	copied, queued Histogram
}

// Add counts the completion of a batch.
func (p *Paths) Add(c stream.Completion, submittedAt time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.GivenUp != nil {
		p.givenUp, p.cause = p.givenUp+1, c.GivenUp
	}
	if c.Path == stream.PathNone {
		return
	}
	t := p.tally(c.Path)
	t.copied.Observe(c.Finished.Sub(c.Started))
	t.queued.Observe(c.Started.Sub(submittedAt))
	t.Reason = c.Reason
	t.Batches++
	t.Pieces += int64(c.Pieces)
	t.Bytes += c.Bytes
	t.Predicted += c.Predicted
	if c.Summed {
		t.Summed += c.Bytes
	}
	// Streams complete batches in order, so the time before lastEnd is already counted.
	start := c.Started
	if start.Before(p.lastEnd) {
		start = p.lastEnd
	}
	if d := c.Finished.Sub(start); d > 0 {
		t.Busy += d
	}
	if c.Finished.After(p.lastEnd) {
		p.lastEnd = c.Finished
	}
}

// tally returns the counters of a path. The caller holds p.mu.
func (p *Paths) tally(path stream.Path) *pathTally {
	for _, t := range p.paths {
		if t.Path == path {
			return t
		}
	}
	t := &pathTally{PathStats: PathStats{Path: path}}
	p.paths = append(p.paths, t)
	return t
}

// GivenUp returns the number of times that a stream stopped using a path, and the latest cause.
func (p *Paths) GivenUp() (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.givenUp, p.cause
}

// Read returns the statistics of all paths in order of first use.
func (p *Paths) Read() []PathStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []PathStats
	for _, t := range p.paths {
		s := t.PathStats
		s.Copied, s.Queued = t.copied.Read(), t.queued.Read()
		out = append(out, s)
	}
	return out
}

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
