package replay

import (
	"context"
	"math"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
)

// pace keeps a trace's times. begin and wait are the reader's alone.
type pace struct {
	clock clockwork.Clock
	speed float64 // zero: there is no time to keep
	start time.Time
	first int64 // timestamp of the first request
}

// turn is a request on its way to a worker.
type turn struct {
	Request
	keys []block.Key // of its blocks
	due  time.Time   // when it may start, where the trace's times are kept
}

// begin has the trace's times begin now, with its first request.
func (p *pace) begin(req *turn) { p.start, p.first = p.clock.Now(), req.Timestamp }

// wait waits until the request's time has come, or returns the cause of ctx.
func (p *pace) wait(ctx context.Context, req *turn) error {
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

// after returns when a request is due, from the first on. A timestamp before the first's, in a trace that is out of order, is due at once;
// one that a time.Duration cannot hold is due in 292 years.
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

// late returns by how much a request that starts now is behind its time.
func (p *pace) late(req *turn) time.Duration { return p.clock.Since(req.due) }
