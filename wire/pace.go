package wire

import (
	"fmt"
	"os"
	"time"
)

// PaceBytes is the number of bytes that a peer must move within the limit of a Pace.
const PaceBytes = 16 << 10

// Pace is the minimum rate of one request: PaceBytes for each limit of time that is spent waiting
// for the peer. It is not safe for concurrent use.
type Pace struct {
	limit  time.Duration
	moved  int64
	waited time.Duration
}

// NewPace returns a pace with that limit.
func NewPace(limit time.Duration) *Pace { return &Pace{limit: limit} }

// Begin resets the pace for a new request.
func (p *Pace) Begin() { p.moved, p.waited = 0, 0 }

// Moved records n bytes that were awaited since began. If the peer is too slow, it returns an error
// that wraps os.ErrDeadlineExceeded.
func (p *Pace) Moved(n int, began time.Time) error {
	p.moved += int64(n)
	if p.moved >= PaceBytes {
		p.Begin()
		return nil
	}
	if p.waited += time.Since(began); p.waited >= p.limit {
		return fmt.Errorf("%d bytes of a request in %v: %w", p.moved, p.waited.Round(time.Millisecond), os.ErrDeadlineExceeded)
	}
	return nil
}
