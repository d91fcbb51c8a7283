package scalesim

import (
	"cmp"
	"time"
)

// Config is the size of a simulation. Zero values are the defaults, which are those of a test.
type Config struct {
	Seed    uint64
	Servers int // default 100
	Zones   int // default 10
	Runs    int // that all servers store; default 1e6
	Clients int // default 16
	// CacheRuns is the number of runs in the cache of each client. Default: 1% of Runs. Negative:
	// no caches.
	CacheRuns int
	Rate      float64 // requests of all clients for each second, before their caches; default 20,000
	// Hottest is the share of the requests for the most popular run. Default 0.1. The others follow
	// Zipf's law.
	Hottest float64
	// Warm is the time before the first figures, Phase the time of each of the following phases.
	// Defaults 300 s and 100 s.
	Warm, Phase time.Duration
	// HotRate is the number of requests for each second from which a run is hot at a server.
	// Default 4, which are 256 requests for blocks.
	HotRate int
}

const (
	rampTime      = 40 * time.Second
	requestTime   = time.Millisecond // of a server, for a run
	networkTime   = 100 * time.Microsecond
	timeout       = time.Second
	directoryTime = 10 * time.Second // from the loss of a server to a new view
	slowFactor    = 100
	joinCount     = 1 // servers that join
	marksLife     = 30 * time.Second
	marksMost     = 4096
)

func (c Config) withDefaults() Config {
	c.Servers, c.Zones, c.Runs = cmp.Or(c.Servers, 100), cmp.Or(c.Zones, 10), cmp.Or(c.Runs, 1_000_000)
	c.Clients, c.Rate, c.Hottest = cmp.Or(c.Clients, 16), cmp.Or(c.Rate, 20_000), cmp.Or(c.Hottest, 0.1)
	c.CacheRuns = max(cmp.Or(c.CacheRuns, c.Runs/100), 0)
	c.Warm, c.Phase, c.HotRate = cmp.Or(c.Warm, 300*time.Second), cmp.Or(c.Phase, 100*time.Second), cmp.Or(c.HotRate, 4)
	return c
}
