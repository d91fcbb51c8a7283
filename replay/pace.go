package replay

import (
	"context"
	"math"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
)

// pace delays requests until they are due. Only the goroutine that reads the trace uses begin and
// wait.
type pace struct {
	clock clockwork.Clock
	speed float64 // zero: no delays
	start time.Time
	first int64 // timestamp of the first request
}

// queuedRequest is a request in the queue to the workers.
type queuedRequest struct {
	Request
	keys []block.Key // keys of its blocks
	due  time.Time   // due time; zero if speed is zero
}

// begin sets the due time of the first request req to the current time.
func (p *pace) begin(req *queuedRequest) { p.start, p.first = p.clock.Now(), req.Timestamp }

// wait waits until the request is due. If ctx ends first, it returns the cause of ctx.
func (p *pace) wait(ctx context.Context, req *queuedRequest) error {
	if p.speed == 0 {
		return nil
	}
	req.due = p.start.Add(p.after(req.Timestamp))
	left := req.due.Sub(p.clock.Now())
	if left <= 0 {
		return nil
	}
	timer := p.clock.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.Chan():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// after returns the due time of a timestamp, relative to the first request's. It returns 0 for
// earlier timestamps, which occur in unordered traces, and at most 292 years, the longest
// time.Duration.
func (p *pace) after(timestamp int64) time.Duration {
	nanos := (float64(timestamp) - float64(p.first)) * float64(time.Millisecond) / p.speed
	switch {
	case nanos >= math.MaxInt64:
		return math.MaxInt64
	case nanos > 0:
		return time.Duration(nanos)
	}
	return 0
}

// delay returns the time since the request was due.
func (p *pace) delay(req *queuedRequest) time.Duration { return p.clock.Since(req.due) }
