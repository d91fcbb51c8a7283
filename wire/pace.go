package wire

import (
	"fmt"
	"os"
	"time"
)

// PaceBytes is the number of bytes that a peer must move within the limit of a Pace.
const PaceBytes = 16 << 10

// PaceRate is the minimum rate of a request as a whole, in bytes a second, for Pace.Bound.
const PaceRate = 256 << 10

// Pace is the minimum rate of one request: PaceBytes for each limit of time that is spent waiting
// for the peer. It is not safe for concurrent use.
type Pace struct {
	limit  time.Duration
	moved  int64
	waited time.Duration
	left   time.Duration // of the request's time; negative: too late. Only if bounded
	total  bool          // left is in use
}

// NewPace returns a pace with that limit.
func NewPace(limit time.Duration) *Pace { return &Pace{limit: limit} }

// Begin resets the pace for a new request.
func (p *Pace) Begin() { p.moved, p.waited, p.total = 0, 0, false }

// Bound limits the time that is spent waiting for the next n bytes to limit, and n bytes at PaceRate.
func (p *Pace) Bound(n int64) {
	p.left, p.total = p.limit+time.Duration(float64(n)/PaceRate*float64(time.Second)), true
}

// Moved records n bytes that were awaited since began. If the peer is too slow, it returns an error
// that wraps os.ErrDeadlineExceeded.
func (p *Pace) Moved(n int, began time.Time) error {
	p.moved += int64(n)
	if p.moved >= PaceBytes && !p.total {
		p.Begin()
		return nil
	}
	took := time.Since(began)
	if p.left -= took; p.total && p.left < 0 {
		return fmt.Errorf("a request in longer than %v and %d bytes a second: %w", p.limit, PaceRate, os.ErrDeadlineExceeded)
	}
	if p.moved >= PaceBytes {
		p.moved, p.waited = 0, 0
		return nil
	}
	if p.waited += took; p.waited >= p.limit {
		return fmt.Errorf("%d bytes of a request in %v: %w", p.moved, p.waited.Round(time.Millisecond), os.ErrDeadlineExceeded)
	}
	return nil
}
