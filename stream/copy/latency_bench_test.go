package copy_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device/cuda/cudatest"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/streamtest"
)

var latencyPaths = []stream.Path{stream.PathNone, stream.PathCopyEngine, stream.PathKernel}

const latencyBlock = 4 << 10

// BenchmarkLatencySim and BenchmarkLatencyCUDA measure copies of 4 KiB blocks from Submit to the
// end of Wait. They report the median, because interrupts affect only a few samples.
func BenchmarkLatencySim(b *testing.B) { benchLatency(b, openSim(b, sim.Options{})) }

func BenchmarkLatencyCUDA(b *testing.B) { benchLatency(b, cudatest.Open(b)) }

func benchLatency(b *testing.B, dev device.Device) {
	b.Helper()
	const block, blocks = latencyBlock, 64
	host := streamtest.Pinned(dev).Alloc(b, 2*block*blocks)
	gpu := streamtest.DeviceMemory(dev).Alloc(b, 2*block*blocks)
	for _, path := range latencyPaths {
		for _, n := range []int{1, blocks} {
			batch := spaced(host, gpu, n, block)
			for _, dir := range []string{"d2h", "h2d"} {
				b.Run(fmt.Sprintf("%s/%s/%d", pathName(path), dir, n), func(b *testing.B) {
					latency(b, dev, streamcopy.Options{Path: path}, batch)
				})
				batch.Dst, batch.Src = batch.Src, batch.Dst
			}
		}
	}
}

// spaced returns a batch of n copies of blocks that are aligned to their size and not adjacent.
func spaced(dst, src *mem.Region, n int, block int64) *mem.Batch {
	var b mem.Batch
	for i := range int64(n) {
		b.Dst = append(b.Dst, mem.Extent{Region: dst, Off: 2 * i * block, Len: block})
		b.Src = append(b.Src, mem.Extent{Region: src, Off: 2 * i * block, Len: block})
	}
	return &b
}

func latency(b *testing.B, dev device.Device, o streamcopy.Options, batch *mem.Batch) {
	b.Helper()
	s := open(b, dev, o)
	defer closeStream(b, s)
	quantiles(b, func() {
		ticket, err := s.Submit(b.Context(), batch)
		if err == nil {
			err = ticket.Wait(b.Context())
		}
		if err != nil {
			b.Fatal(err)
		}
	})
}

// quantiles calls once repeatedly and reports quantiles of its duration.
func quantiles(b *testing.B, once func()) {
	b.Helper()
	elapsed := make([]time.Duration, 0, 1<<16)
	for b.Loop() {
		begun := time.Now()
		once()
		if len(elapsed) < cap(elapsed) {
			elapsed = append(elapsed, time.Since(begun))
		}
	}
	slices.Sort(elapsed)
	b.ReportMetric(float64(elapsed[len(elapsed)/2].Nanoseconds())/1e3, "p50-us")
	b.ReportMetric(float64(elapsed[len(elapsed)*99/100].Nanoseconds())/1e3, "p99-us")
}
