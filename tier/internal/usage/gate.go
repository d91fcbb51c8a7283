package usage

import (
	"sync"

	"github.com/kvlane/kvlane/errdefs"
)

// Gate counts operations under way, so that Close can wait for them.
type Gate struct {
	mu     sync.Mutex
	closed bool
	active int
	total  int64
	Idle   chan struct{} // closed when the gate is closed and nothing is under way
}

// Init makes the Gate ready for use.
func (g *Gate) Init() { g.Idle = make(chan struct{}) }

// Enter begins an operation; ErrClosed once the gate is closed.
func (g *Gate) Enter() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errdefs.ErrClosed
	}
	g.active++
	g.total++
	return nil
}

// Leave ends an operation.
func (g *Gate) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.active--; g.active == 0 && g.closed {
		close(g.Idle)
	}
}

// Close refuses further operations. A second close does nothing.
func (g *Gate) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	g.closed = true
	if g.active == 0 {
		close(g.Idle)
	}
}

// Count returns the operations under way, and those that there ever were.
func (g *Gate) Count() (active int, total int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.active, g.total
}
