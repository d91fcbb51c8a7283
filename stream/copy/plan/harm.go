package plan

import (
	"time"

	"github.com/kvlane/kvlane/stream"
)

// harm is the share of a matrix product's rate that a path takes while it works: base, and block more for each thread block.
type harm struct{ base, block float64 }

// mostHarm is what nothing exceeds: a kernel that writes host memory as fast as the bus carries it.
const mostHarm = 0.55

// harms are an H100's (docs/benchmarks.md, ADR 9): to the device the mean of what products of 4096 to 8192 rows of bf16 matrices lose,
// 5 to 23% to kernels of 4 thread blocks, about as much to one multiprocessor that is taken, and 1 to 7% to staged
// copies; back what products of 8192 rows lose: staged at 40 to 42 GB/s (0.1 to 2.2%), kernels at 46 by 16 (52%) and at 30 by 1 (4.8%). The
// rest lies on lines through these, or is guessed after them.
var harms = [directions][stream.PathCount]harm{
	H2D: {
		stream.PathKernel:     {base: 0.10, block: 0.006},
		stream.PathStaged:     {base: 0.03},
		stream.PathCopyEngine: {base: 0.01}, stream.PathNIC: {base: 0.01}, stream.PathNICSoft: {base: 0.01},
	},
	D2H: {
		stream.PathKernel:     {base: -0.08, block: 0.13},
		stream.PathStaged:     {base: 0.015},
		stream.PathCopyEngine: {base: 0.01}, stream.PathNIC: {base: 0.01}, stream.PathNICSoft: {base: 0.01},
	},
	// Not measured: kernels are taken to cost their share of 132 multiprocessors.
	D2D:  {stream.PathKernel: {block: 1.0 / 132}, stream.PathCopyEngine: {base: 0.01}},
	Peer: {stream.PathKernel: {block: 1.0 / 132}, stream.PathCopyEngine: {base: 0.01}},
}

// harmOf returns what a path takes with so many thread blocks.
func harmOf(d Direction, p stream.Path, ctas int) float64 {
	h := harms[d][p]
	return max(0, min(mostHarm, h.base+h.block*float64(ctas)))
}

// harmless is how long a batch may work and do no harm that counts, if nothing is ahead of it: it is over before anybody notices,
// and who waits for so little feels every microsecond.
const harmless = 50 * time.Microsecond

// weigh returns what counts of the harm of a batch that works for so long, in nanoseconds of the time of what computes beside it.
// Waits for multiprocessors count as work: they are as long for few thread blocks as for many, and must not speak for many.
func (c *candidate) weigh(works float64, ahead time.Duration) float64 {
	return c.harm * max(0, works-float64(max(0, harmless-ahead)))
}
