package usage

import (
	"fmt"
	"sync"
	"time"
)

// Pause suspends writes after a write failed for lack of space. During a pause writes fail at once.
// The first write after the pause is attempted again.
type Pause struct {
	mu    sync.Mutex
	cause error // nil: not paused
	since time.Time
	until time.Time
	wait  time.Duration
}

// The first pause lasts pauseLeast. Each further one is twice as long as the previous, up to
// pauseMost.
const (
	pauseLeast = time.Second
	pauseMost  = 30 * time.Second
)

// Begin starts a pause for cause. It does nothing during a pause.
func (p *Pause) Begin(now time.Time, cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cause == nil {
		p.since = now
	}
	if p.cause != nil && now.Before(p.until) {
		return // a concurrent write has begun the pause
	}
	p.wait = min(max(2*p.wait, pauseLeast), pauseMost)
	p.cause, p.until = cause, now.Add(p.wait)
}

// End records that a write succeeded.
func (p *Pause) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cause, p.wait = nil, 0
}

// Err returns the cause of the pause, or nil if writes are allowed.
func (p *Pause) Err(now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cause == nil || !now.Before(p.until) {
		return nil
	}
	return fmt.Errorf("writing is paused since %s, for %s more: %w",
		now.Sub(p.since).Round(time.Millisecond), p.until.Sub(now).Round(time.Millisecond), p.cause)
}

// Cause returns the error of the last write, or nil if the write succeeded.
func (p *Pause) Cause() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cause
}
