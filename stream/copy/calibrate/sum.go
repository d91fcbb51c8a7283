package calibrate

import (
	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/mem"
)

const (
	// sumBytes is what is summed at a time: little enough to take a millisecond or two.
	sumBytes = 16 << 20
	// sumRounds is how often; the fastest counts, as disturbances only ever slow.
	sumRounds = 3
)

// sumGBps returns how fast this CPU sums leaves of pinned memory, other ones each round, in GB/s. Zero where the clock did
// not move.
func (c *calibration) sumGBps() float64 {
	all := c.host.Bytes()
	n := min(sumBytes, len(all)/sumRounds/mem.LeafBytes*mem.LeafBytes)
	var fastest float64
	for round := range sumRounds {
		b := all[round*n : (round+1)*n]
		begun := c.o.Clock.Now()
		for ; len(b) > 0; b = b[mem.LeafBytes:] {
			c.summed += xxh3.Hash(b[:mem.LeafBytes])
		}
		if ns := c.o.Clock.Since(begun).Nanoseconds(); ns > 0 {
			fastest = max(fastest, float64(n)/float64(ns))
		}
	}
	return fastest
}
