package usage

import (
	"fmt"
	"sync"
	"time"
)

// Pause says whether writing goes on after it failed for want of room. Meanwhile writes fail at once rather than wait or try,
// each in its turn, for what the one before did not get; the first after it tries again.
type Pause struct {
	mu    sync.Mutex
	cause error // nil: not paused
	since time.Time
	until time.Time
	wait  time.Duration
}

// pauseLeast and pauseMost bound a pause; each is twice as long as the one before.
const (
	pauseLeast = time.Second
	pauseMost  = 30 * time.Second
)

// Begin pauses for cause, longer than the last time if writing has not succeeded since.
func (p *Pause) Begin(now time.Time, cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cause == nil {
		p.since = now
	}
	if p.cause != nil && now.Before(p.until) {
		return // another has begun it meanwhile
	}
	p.wait = min(max(2*p.wait, pauseLeast), pauseMost)
	p.cause, p.until = cause, now.Add(p.wait)
}

// End notes that a write succeeded.
func (p *Pause) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cause, p.wait = nil, 0
}

// Err is why nobody writes now; nil where somebody may try.
func (p *Pause) Err(now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cause == nil || !now.Before(p.until) {
		return nil
	}
	return fmt.Errorf("writing is paused since %s, for %s more: %w",
		now.Sub(p.since).Round(time.Millisecond), p.until.Sub(now).Round(time.Millisecond), p.cause)
}

// Why is what the last write failed for; nil once one has succeeded.
func (p *Pause) Why() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cause
}
