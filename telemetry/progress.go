package telemetry

import (
	"sync/atomic"
	"time"
)

// Progress is the progress of a replay. Its counters never decrease.
type Progress struct {
	start      time.Time
	total      atomic.Int64
	requests   atomic.Int64
	accesses   atomic.Int64
	hits       atomic.Int64
	verified   atomic.Int64
	mismatched atomic.Int64
}

// NewProgress returns the progress of a replay of total requests that starts now.
func NewProgress(total int64) *Progress {
	p := &Progress{start: time.Now()}
	p.total.Store(total)
	return p
}

// Request counts one finished request: its blocks, the blocks found as a prefix, the bytes verified
// after loading, and the wrong bytes among them.
func (p *Progress) Request(accesses, hits, verifiedBytes, mismatches int64) {
	p.accesses.Add(accesses)
	p.hits.Add(hits)
	p.verified.Add(verifiedBytes)
	p.mismatched.Add(mismatches)
	p.requests.Add(1)
}

// Requests returns the number of finished requests and the total.
func (p *Progress) Requests() (done, total int64) { return p.requests.Load(), p.total.Load() }
