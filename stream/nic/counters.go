package nic

import (
	"sync/atomic"

	"github.com/kvlane/kvlane/stream"
)

// Counters counts the work of streams on one NIC. The zero value is ready to use. Several streams
// may share it.
type Counters struct {
	requests, bytes, doorbells, failed, flushed, broken, pairs, opened atomic.Int64
}

// Read sets the counters of requests, streams and queue pairs in s. It is safe for concurrent use.
func (c *Counters) Read(s *stream.NICStats) {
	s.Requests, s.Bytes, s.Doorbells = c.requests.Load(), c.bytes.Load(), c.doorbells.Load()
	s.Failed, s.Flushed, s.Broken = c.failed.Load(), c.flushed.Load(), c.broken.Load()
	s.QueuePairs, s.QueuePairsOpened = c.pairs.Load(), c.opened.Load()
}

// posted counts n requests posted with one doorbell.
func (c *Counters) posted(n int) {
	c.requests.Add(int64(n))
	c.doorbells.Add(1)
}
