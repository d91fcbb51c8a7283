package plan

import (
	"time"

	"github.com/kvlane/kvlane/stream"
)

// interference is the share of its rate that a matrix product loses while a path copies: base, plus
// block for each thread block.
type interference struct{ base, block float64 }

// maxInterference is the maximum interference. A kernel that writes host memory at the full rate of
// the bus causes it.
const maxInterference = 0.55

// interferences holds measurements of an H100 (docs/benchmarks.md, ADR 9). H2D: mean losses of
// products of bf16 matrices of 4096 to 8192 rows. Kernels of 4 thread blocks cost 5 to 23%, about
// as much as the loss of one multiprocessor, and staged copies 1 to 7%. D2H: losses of products of
// 8192 rows. Staged copies at 40 to 42 GB/s cost 0.1 to 2.2%, kernels of 16 thread blocks at 46
// GB/s 52%, and kernels of one at 30 GB/s 4.8%. Other values are interpolated or estimated from
// these.
var interferences = [directions][stream.PathCount]interference{
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
	// Not measured. A kernel is assumed to cost its share of 132 multiprocessors.
	D2D:  {stream.PathKernel: {block: 1.0 / 132}, stream.PathCopyEngine: {base: 0.01}},
	Peer: {stream.PathKernel: {block: 1.0 / 132}, stream.PathCopyEngine: {base: 0.01}},
}

// interferenceOf returns the interference of path p with this number of thread blocks.
func interferenceOf(d Direction, p stream.Path, ctas int) float64 {
	h := interferences[d][p]
	return max(0, min(maxInterference, h.base+h.block*float64(ctas)))
}

// freeTime is the working time of a batch on an idle stream that counts as free of interference.
// Such a short batch does not disturb other work, and each microsecond of its latency matters.
const freeTime = 50 * time.Microsecond

// weightedCost returns the interference of a batch that works for this number of nanoseconds, as
// time that concurrent work loses. Waits for multiprocessors count as work, because they do not
// depend on the number of thread blocks and must not favour a large number.
func (c *candidate) weightedCost(works float64, ahead time.Duration) float64 {
	return c.interference * max(0, works-float64(max(0, freeTime-ahead)))
}
