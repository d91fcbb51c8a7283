package store

import "sync"

// gate lets those pass who wait for a number to be exceeded. The number only ever grows.
type gate struct {
	mu    sync.Mutex
	n     int
	waits map[int]chan struct{} // those that somebody waits for
}

func (g *gate) at() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.n
}

// pass raises the number to n.
func (g *gate) pass(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n = max(g.n, n)
	for k, c := range g.waits {
		if k < g.n {
			close(c)
			delete(g.waits, k)
		}
	}
}

// passed is what waits for nothing.
var passed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// beyond is closed when the number is more than k.
func (g *gate) beyond(k int) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if k < g.n {
		return passed
	}
	if g.waits == nil {
		g.waits = make(map[int]chan struct{})
	}
	c := g.waits[k]
	if c == nil {
		c = make(chan struct{})
		g.waits[k] = c
	}
	return c
}
