package calibrate

import (
	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/mem"
)

const (
	// sumBytes is the size of the memory that is summed at a time. Summing it takes a millisecond
	// or two.
	sumBytes = 16 << 20
	// sumRounds is the number of rounds. Only the fastest counts, because disturbances only slow a
	// round down.
	sumRounds = 3
)

// sumGBps returns the rate at which this CPU sums leaves of pinned memory, in GB/s. Each round uses
// other leaves. It returns zero if the measured time is zero.
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
