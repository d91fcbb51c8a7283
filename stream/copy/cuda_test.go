package copy_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device/cuda/cudatest"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/stream/streamtest"
)

func TestConformanceCUDA(t *testing.T) {
	dev := cudatest.Open(t)
	for _, p := range paths {
		t.Run(pathName(p), func(t *testing.T) {
			streamtest.Run(t, func(t *testing.T) streamtest.Env {
				t.Helper()
				return env(t, dev, streamcopy.Options{Path: p, StagingBytes: 256 << 10})
			})
		})
	}
	t.Run("any path next", func(t *testing.T) {
		streamtest.Run(t, func(t *testing.T) streamtest.Env {
			t.Helper()
			return env(t, dev, streamcopy.Options{Planner: newDice(1), StagingBytes: 64 << 10})
		})
	})
	t.Run("small ring", func(t *testing.T) {
		streamtest.Run(t, func(t *testing.T) streamtest.Env {
			t.Helper()
			return env(t, dev, streamcopy.Options{Descriptors: streamcopy.MinDescriptors})
		})
	})
}

// BenchmarkCUDA measures batches of blocks that are scattered in device memory, from Submit to the
// resolved ticket. Batches run one at a time; for the kernel path also several at once and as a
// mem.Paged.
func BenchmarkCUDA(b *testing.B) {
	dev := cudatest.Open(b)
	const arena = 256 << 20
	host, gpu := streamtest.Pinned(dev).Alloc(b, arena), streamtest.DeviceMemory(dev).Alloc(b, arena)
	for _, path := range paths {
		for _, size := range []int64{4 << 10, 64 << 10, 1 << 20} {
			for _, n := range []int{1, 16, 1024, 16384} {
				if int64(n)*size > arena || path == stream.PathCopyEngine && n > 1024 {
					continue
				}
				toHost, toDevice := scattered(host, gpu, n, size), scattered(host, gpu, n, size)
				toDevice.Dst, toDevice.Src = toDevice.Src, toDevice.Dst
				name := fmt.Sprintf("%s/%dKiB/%d", pathName(path), size>>10, n)
				benchCUDA(b, dev, name+"/d2h", path, toHost, 1)
				benchCUDA(b, dev, name+"/h2d", path, toDevice, 1)
			}
		}
	}
	// The maximum rate of a path: batches of 64 MiB, four in flight.
	for _, path := range paths {
		for _, size := range []int64{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20} {
			if path == stream.PathCopyEngine && size < 64<<10 {
				continue
			}
			toHost, toDevice := scattered(host, gpu, int(64<<20/size), size), scattered(host, gpu, int(64<<20/size), size)
			toDevice.Dst, toDevice.Src = toDevice.Src, toDevice.Dst
			name := fmt.Sprintf("rate/%s/%dKiB", pathName(path), size>>10)
			benchCUDA(b, dev, name+"/d2h", path, toHost, 4)
			benchCUDA(b, dev, name+"/h2d", path, toDevice, 4)
		}
	}
	list := scattered(host, gpu, 16384, 4<<10)
	benchCUDA(b, dev, "four in flight/4KiB/16384/d2h", stream.PathKernel, list, 4)
	list.Dst, list.Src = list.Src, list.Dst
	benchCUDA(b, dev, "four in flight/4KiB/16384/h2d", stream.PathKernel, list, 4)
	for _, dir := range []mem.Direction{mem.ToSlots, mem.ToPages} {
		paged := benchPaged(host, gpu, 64, 256, 4<<10)
		paged.Paged.Dir = dir
		summed := benchPaged(host, gpu, 64, 256, mem.LeafBytes)
		summed.Paged.Dir, summed.Paged.Sums = dir, make([]uint64, 64*256)
		for _, path := range []stream.Path{stream.PathKernel, stream.PathStaged} {
			// One at a time, because the stream owns the checksums of a batch until it resolves.
			benchCUDA(b, dev, fmt.Sprintf("paged/%s/4KiB/16384/%s", path, dir), path, paged, 1)
			benchCUDA(b, dev, fmt.Sprintf("paged/%s/4KiB/16384/%s with sums", path, dir), path, summed, 1)
		}
	}
}

// benchCUDA measures a path with depth batches in flight.
func benchCUDA(b *testing.B, dev device.Device, name string, path stream.Path, batch *mem.Batch, depth int) {
	b.Helper()
	benchStream(b, dev, name, streamcopy.Options{Path: path, QueueDepth: depth}, batch)
}

// benchStream keeps as many batches in flight as the stream accepts.
func benchStream(b *testing.B, dev device.Device, name string, o streamcopy.Options, batch *mem.Batch) {
	b.Helper()
	b.Run(name, func(b *testing.B) {
		s := open(b, dev, o)
		b.SetBytes(batch.Bytes())
		submit := func() *stream.Ticket {
			ticket, err := s.Submit(b.Context(), batch)
			if err != nil {
				b.Fatal(err)
			}
			return ticket
		}
		wait := func(ticket *stream.Ticket) {
			if err := ticket.Wait(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		wait(submit())
		b.ResetTimer() // b.Loop would not include the batches that are in flight at the end
		var last *stream.Ticket
		for range b.N {
			if last = submit(); o.QueueDepth == 1 {
				wait(last)
			}
		}
		wait(last)
		b.StopTimer()
		if err := s.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
	})
}

// BenchmarkCUDAStaged measures the staged path with different sizes of staging memory and numbers
// of thread blocks.
func BenchmarkCUDAStaged(b *testing.B) {
	dev := cudatest.Open(b)
	const arena, size = 256 << 20, 4 << 10
	host, gpu := streamtest.Pinned(dev).Alloc(b, arena), streamtest.DeviceMemory(dev).Alloc(b, arena)
	toHost, toDevice := scattered(host, gpu, 16384, size), scattered(host, gpu, 16384, size)
	toDevice.Dst, toDevice.Src = toDevice.Src, toDevice.Dst
	for _, staging := range []int64{16 << 20, 32 << 20, 64 << 20} {
		for _, ctas := range []int{4, 8, 16, 32} {
			o := streamcopy.Options{QueueDepth: 4, StagingBytes: staging, Planner: &fixedPlanner{choice: plan.Choice{Path: stream.PathStaged, CTAs: ctas}}}
			name := fmt.Sprintf("%d MiB, %d blocks", staging>>20, ctas)
			benchStream(b, dev, name+"/d2h", o, toHost)
			benchStream(b, dev, name+"/h2d", o, toDevice)
		}
	}
}

// scattered returns a batch that copies n blocks from random places of gpu to consecutive places of
// host.
func scattered(host, gpu *mem.Region, n int, size int64) *mem.Batch {
	var b mem.Batch
	for i, at := range rand.New(rand.NewPCG(1, 1)).Perm(int(gpu.Len() / size))[:n] {
		b.Dst = append(b.Dst, mem.Extent{Region: host, Off: int64(i) * size, Len: size})
		b.Src = append(b.Src, mem.Extent{Region: gpu, Off: int64(at) * size, Len: size})
	}
	return &b
}

// BenchmarkCUDAPages measures 100,000 pages that are scattered on both sides, in batches of
// different sizes. It reports the time on the device and the CPU time of Submit.
func BenchmarkCUDAPages(b *testing.B) {
	dev := cudatest.Open(b)
	const arena, count = 512 << 20, 100_000
	slots, pages := streamtest.Pinned(dev).Alloc(b, arena), streamtest.DeviceMemory(dev).Alloc(b, arena)
	for _, size := range []int64{256, 512, 1 << 10, 4 << 10} {
		rng := rand.New(rand.NewPCG(1, uint64(size)))
		pairs := make([]mem.PageSlot, count)
		slot := rng.Perm(count)
		for i, page := range rng.Perm(int(arena / size))[:count] {
			pairs[i] = mem.PageSlot{Page: uint32(page), Slot: uint32(slot[i])}
		}
		for _, each := range []int{8192, 25_000, count} {
			for _, dir := range []mem.Direction{mem.ToSlots, mem.ToPages} {
				var batches []*mem.Batch
				for part := range slices.Chunk(pairs, each) {
					batches = append(batches, &mem.Batch{Paged: &mem.Paged{Dir: dir, Groups: []mem.PageGroup{{
						Planes: []mem.Plane{{Region: pages, Stride: size, Bytes: size}},
						Slots:  mem.Slots{Region: slots, Stride: size},
						Pairs:  part,
					}}}})
				}
				b.Run(fmt.Sprintf("%dB/%d/%s", size, each, dir), func(b *testing.B) {
					s := open(b, dev, streamcopy.Options{Path: stream.PathKernel})
					b.SetBytes(count * size)
					var submitting time.Duration
					for b.Loop() {
						begun := time.Now()
						var last *stream.Ticket
						for _, batch := range batches {
							var err error
							if last, err = s.Submit(b.Context(), batch); err != nil {
								b.Fatal(err)
							}
						}
						submitting += time.Since(begun)
						if err := last.Wait(b.Context()); err != nil {
							b.Fatal(err)
						}
					}
					b.ReportMetric(float64(submitting.Nanoseconds())/float64(b.N)/count, "submit-ns/page")
					if err := s.Close(b.Context()); err != nil {
						b.Fatal(err)
					}
				})
			}
		}
	}
}
