package guard

import (
	"fmt"
	"os"
	"time"
)

// PaceBytes is how much a peer must move within the limit of a Pace.
const PaceBytes = 16 << 10

// Pace is the least rate of one request: PaceBytes in each limit of waiting for the peer. One goroutine uses it.
type Pace struct {
	limit  time.Duration
	moved  int64
	waited time.Duration
}

// NewPace returns a pace with that limit.
func NewPace(limit time.Duration) *Pace { return &Pace{limit: limit} }

// Begin begins a request.
func (p *Pace) Begin() { p.moved, p.waited = 0, 0 }

// Moved counts n bytes for which the connection has waited since began. It returns an error that wraps os.ErrDeadlineExceeded if the peer is
// too slow.
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
