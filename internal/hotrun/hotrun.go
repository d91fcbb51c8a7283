// Package hotrun counts the requests of runs at a block server, in bounded memory, and decides how
// many servers are to have a run.
//
// A run is hot if it has a large share of the server's requests, and enough of them to matter. The
// number of its servers then doubles with each window of time, because each server counts only its
// own part of the requests. It is halved when the share is small.
package hotrun

import (
	"sync"
	"time"
)

const (
	// MaxReplicas is the maximum number of servers of a run.
	MaxReplicas = 16
	// DefaultRate is the default of New.
	DefaultRate = 256

	window  = time.Second
	share   = 16 // a run is hot from 1/share of the requests
	shrink  = 4  // replicas are halved below 1/shrink of the bounds
	rows    = 4
	columns = 1 << 11
	maxHot  = 64
)

// Counter counts requests. Its methods are safe for concurrent use.
type Counter struct {
	rate int

	mu         sync.Mutex
	start      time.Time // of the window
	now, last  *sketch
	hot        map[uint32]hot
	generation uint32 // of the window
}

// sketch has upper bounds of the counts of all runs.
type sketch struct {
	total  int
	counts [rows][columns]uint32
}

type hot struct {
	replicas   int
	generation uint32 // window of the last change
}

// New returns a counter by which runs are hot from a rate of requests for each second. Zero:
// DefaultRate.
func New(rate int) *Counter {
	if rate <= 0 {
		rate = DefaultRate
	}
	return &Counter{rate: rate, now: new(sketch), last: new(sketch), hot: make(map[uint32]hot)}
}

// Count counts a request of a run, and returns the number of servers that are to have the run: 1 if
// it is not hot, at most MaxReplicas.
func (c *Counter) Count(run uint32, now time.Time) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if age := now.Sub(c.start); age >= window {
		c.rotate(now, age)
	}
	c.now.add(run)
	h, found := c.hot[run]
	if h.generation != c.generation || !found {
		h = c.decide(run, h)
	}
	return max(h.replicas, 1)
}

// rotate begins a window. The caller holds mu.
func (c *Counter) rotate(now time.Time, age time.Duration) {
	c.now, c.last = c.last, c.now
	*c.now = sketch{}
	if age >= 2*window { // the server was idle
		*c.last = sketch{}
	}
	c.start = now
	c.generation++
	for run, h := range c.hot {
		if c.generation-h.generation > 2 { // not requested in the last window
			delete(c.hot, run)
		}
	}
}

// decide changes the replicas of a run by the last window, once a window. The caller holds mu.
func (c *Counter) decide(run uint32, h hot) hot {
	n := c.last.count(run)
	switch {
	case n >= c.rate && n*share > c.last.total:
		h.replicas = min(2*max(h.replicas, 1), MaxReplicas)
	case n*shrink < c.rate || n*share*shrink < c.last.total:
		h.replicas /= 2
	}
	h.generation = c.generation
	if h.replicas < 2 {
		delete(c.hot, run)
		return h
	}
	if _, found := c.hot[run]; !found && len(c.hot) >= maxHot {
		return hot{}
	}
	c.hot[run] = h
	return h
}

func (s *sketch) add(run uint32) {
	s.total++
	least := uint32(s.count(run))
	for row := range rows {
		if n := &s.counts[row][column(run, row)]; *n == least {
			*n++
		}
	}
}

func (s *sketch) count(run uint32) int {
	least := ^uint32(0)
	for row := range rows {
		least = min(least, s.counts[row][column(run, row)])
	}
	return int(least)
}

// column mixes the bits of run with the row.
func column(run uint32, row int) uint32 {
	x := (uint64(run) + uint64(row)<<32 + 1) * 0x9e3779b97f4a7c15
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	return uint32(x>>32) % columns
}
