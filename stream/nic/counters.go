package nic

import (
	"sync/atomic"

	"github.com/kvlane/kvlane/stream"
)

// Counters count what streams do on one NIC. The zero value is ready to use, by several streams at once and one after the
// other.
type Counters struct {
	requests, bytes, doorbells, failed, flushed, broken, pairs, opened atomic.Int64
}

// Read sets what s has of requests, streams and queue pairs. Safe for concurrent use.
func (c *Counters) Read(s *stream.NICStats) {
	s.Requests, s.Bytes, s.Doorbells = c.requests.Load(), c.bytes.Load(), c.doorbells.Load()
	s.Failed, s.Flushed, s.Broken = c.failed.Load(), c.flushed.Load(), c.broken.Load()
	s.QueuePairs, s.QueuePairsOpened = c.pairs.Load(), c.opened.Load()
}

// posted counts n requests that were given to the NIC at once.
func (c *Counters) posted(n int) {
	c.requests.Add(int64(n))
	c.doorbells.Add(1)
}
