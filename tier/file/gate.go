package file

import (
	"sync"

	"github.com/kvlane/kvlane/errdefs"
)

// gate counts operations under way, so that Close can wait for them.
type gate struct {
	mu     sync.Mutex
	closed bool
	active int
	total  int64
	idle   chan struct{} // closed when the gate is closed and nothing is under way
}

func (g *gate) init() { g.idle = make(chan struct{}) }

func (g *gate) enter() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errdefs.ErrClosed
	}
	g.active++
	g.total++
	return nil
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.active--; g.active == 0 && g.closed {
		close(g.idle)
	}
}

// close refuses further operations. A second close does nothing.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	g.closed = true
	if g.active == 0 {
		close(g.idle)
	}
}

func (g *gate) count() (active int, total int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.active, g.total
}
