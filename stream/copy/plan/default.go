package plan

import (
	"slices"

	"github.com/kvlane/kvlane/stream"
)

// DefaultSource is the Source of Default's profile.
const DefaultSource = "default: H100 PCIe 5 x16, not measured on this machine"

// Default returns the profile that is used if the machine was not measured. Its values are those of
// an H100 over PCIe 5 x16 (docs/benchmarks.md). Between devices, the values for kernels are those
// of two H200s over NVLink, and those for copy engines are of two H100s. Copies within a device
// were not measured: they have the values of single copies between two H200s, a lower bound. The
// rate of sums is that of one core of these machines. The profile suffices to choose between a copy
// engine and a kernel. It cannot predict how many thread blocks a machine needs.
func Default() Profile {
	p := Profile{Source: DefaultSource, SumGBps: 12, Sizes: slices.Clone(defaultSizes), Counts: slices.Clone(defaultCounts)}
	p.GBps = [directions]float64{H2D: 54.3, D2H: 54.4, D2D: 396, Peer: 396}
	for i := range defaults {
		d := &defaults[i]
		p.Models = append(p.Models, d.model())
	}
	return p
}

var (
	defaultSizes  = []int64{256, 512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20}
	defaultCounts = []int64{1, 4, 16, 64, 256, 1 << 10, 4 << 10, 16 << 10}
)

// defaultPath holds the measurements of a path in one direction. start is the start-up time of a
// batch and lead the part of it that overlaps an earlier batch, in nanoseconds. rate is the rate of
// long batches at defaultSizes, in GB/s.
type defaultPath struct {
	path        stream.Path
	ctas        int
	dir         Direction
	start, lead float64
	// serial is the rate of a single copy, in GB/s, if copies of a batch run concurrently. Zero:
	// copies run one after another.
	serial float64
	rate   [13]float64
}

// defaults holds the measurements. Kernels use 16-byte loads and 512 threads per block. Staged
// copies have batches of 64 MiB. The values for peers are the slower of reads and writes, with
// pages for kernels and with calls of 256 copies for copy engines. Copies of 256 B to 2 KiB by copy
// engine are derived from the cost at 4 KiB; between peers, those of 8 KiB are too.
var defaults = []defaultPath{
	{stream.PathCopyEngine, 0, D2D, 7000, 5000, 0, [13]float64{0.103, 0.206, 0.4125, 0.825, 1.65, 3.2, 6.3, 12.5, 24.6, 80, 206, 340, 385}},
	{stream.PathCopyEngine, 0, H2D, 9000, 6000, 0, [13]float64{0.4, 0.8, 1.6, 3.2, 6.5, 7.5, 20, 36, 45, 48, 51.5, 53.6, 54.4}},
	{stream.PathCopyEngine, 0, D2H, 9000, 6000, 0, [13]float64{0.6, 1.2, 2.4, 4.8, 9.5, 16, 27, 32, 42, 46, 51, 53.4, 54.3}},

	{stream.PathKernel, 1, H2D, 13500, 8000, 4, [13]float64{9.07, 10, 10.5, 15, 19.1, 20, 20.9, 20.8, 20.7, 20.7, 20.8, 20.8, 20.8}},
	{stream.PathKernel, 1, D2H, 13500, 8000, 4, [13]float64{19, 23.4, 26.5, 32.2, 36, 39, 42, 42.4, 42.8, 42.6, 42.6, 42.6, 42.6}},
	{stream.PathKernel, 2, H2D, 13500, 8000, 4, [13]float64{17, 18.9, 20, 28.2, 35.4, 37, 38.4, 38.3, 38.1, 38.8, 38.9, 38.9, 38.9}},
	{stream.PathKernel, 2, D2H, 13500, 8000, 4, [13]float64{37.6, 44, 48.1, 49.1, 49.7, 49.8, 49.8, 49.6, 49.5, 49.5, 49.5, 49.5, 49.5}},
	{stream.PathKernel, 4, H2D, 13500, 8000, 4, [13]float64{31.4, 34.1, 35.6, 43.9, 49, 49.2, 49.4, 49.4, 49.5, 49.6, 49.7, 49.7, 49.7}},
	{stream.PathKernel, 4, D2H, 13500, 8000, 4, [13]float64{47.8, 49.3, 50.1, 50.3, 50.5, 50.6, 50.7, 50.7, 50.8, 50.8, 50.8, 50.8, 50.8}},
	{stream.PathKernel, 8, H2D, 13500, 8000, 4, [13]float64{45, 47.4, 48.7, 49, 49.2, 49.3, 49.4, 49.4, 49.5, 49.5, 49.5, 49.5, 49.5}},
	{stream.PathKernel, 8, D2H, 13500, 8000, 4, [13]float64{49.4, 49.8, 50, 50.4, 50.6, 50.7, 50.8, 50.8, 50.8, 50.8, 50.8, 50.8, 50.8}},
	{stream.PathKernel, 16, H2D, 13500, 8000, 4, [13]float64{45.2, 47.4, 48.6, 48.9, 49, 49.2, 49.4, 49.5, 49.5, 49.5, 49.5, 49.5, 49.5}},
	{stream.PathKernel, 16, D2H, 13500, 8000, 4, [13]float64{49.4, 50, 50.3, 50.6, 50.8, 50.9, 50.9, 50.9, 50.9, 50.9, 50.9, 50.9, 50.9}},
	{stream.PathKernel, 8, D2D, 13500, 8000, 4, [13]float64{75, 140, 230, 290, 299, 320, 340, 340, 340, 340, 340, 340, 340}},
	{stream.PathKernel, 32, D2D, 13500, 8000, 4, [13]float64{84, 160, 260, 325, 334, 342, 351, 351, 351, 351, 351, 351, 351}},

	{stream.PathStaged, 32, H2D, 25000, 15000, 0, [13]float64{20, 33, 45, 51, 52.7, 53, 53.2, 53.3, 53.4, 53.4, 53.4, 53.4, 53.4}},
	{stream.PathStaged, 32, D2H, 25000, 15000, 0, [13]float64{20, 33, 46, 52, 53.9, 54, 54, 54, 54, 54, 54, 54, 54}},

	{stream.PathCopyEngine, 0, Peer, 7000, 6000, 0, [13]float64{0.15, 0.3, 0.6, 1.2, 2.5, 5, 10.7, 30, 68.6, 152, 392, 380, 397}},
	{stream.PathKernel, 8, Peer, 13500, 8000, 8, [13]float64{94.3, 101.6, 107, 168.6, 191.4, 200.2, 209.9, 209.8, 209.9, 210.2, 210, 211.5, 211.5}},
	{stream.PathKernel, 32, Peer, 13500, 8000, 8, [13]float64{152.8, 263.1, 316.5, 340.2, 348, 350.3, 351.4, 352.2, 352.5, 352.7, 353.6, 352.9, 352.9}},
	{stream.PathKernel, 132, Peer, 13500, 8000, 8, [13]float64{122.4, 251.4, 326.9, 353.9, 361.9, 366.5, 368, 367.5, 367, 368.3, 368.6, 368.2, 368.2}},
}

const (
	// serialBytes is the part of a batch that one warp copies at a time.
	serialBytes = 16 << 10
	// describeNanos is the CPU time to describe a piece to a kernel. It exceeds the kernel's own
	// time for the smallest pieces.
	describeNanos = 18
)

// defaultDuplex is the additional time of each byte, in nanoseconds, while as many bytes are copied
// in the opposite direction.
var defaultDuplex = map[stream.Path]float64{
	stream.PathCopyEngine: 0.003, stream.PathStaged: 0.003,
	stream.PathKernel: 0.014,
}

func (d *defaultPath) model() Model {
	m := Model{Path: d.path, CTAs: d.ctas, Dir: d.dir, Side: Scattered, Lead: d.lead}
	if d.dir <= D2H {
		m.Duplex = defaultDuplex[d.path]
	}
	if d.path == stream.PathStaged {
		m.Side = Contiguous
	}
	for i, size := range defaultSizes {
		cost := float64(size) / d.rate[i]
		first := cost
		if d.serial > 0 || d.path == stream.PathStaged {
			cost = max(cost, describeNanos)
		}
		if d.serial > 0 {
			first = min(float64(size), serialBytes) / d.serial
		}
		for _, n := range defaultCounts {
			m.Times = append(m.Times, d.start+max(first, float64(n)*cost))
		}
	}
	return m
}
