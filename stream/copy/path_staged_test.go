package copy_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// gathering is a planner that sends all by the staged path, where that takes it, in chunks of so many bytes.
func gathering(chunk int64) *decider {
	return &decider{choice: plan.Choice{Path: stream.PathStaged, ChunkBytes: chunk, Reason: "planned"}}
}

// blocksBatch copies n blocks that are scattered in pages and follow each other in host memory from block first on.
func blocksBatch(host, pages *mem.Region, first, n int, size int64, toHost bool) *mem.Batch {
	var b mem.Batch
	for i := first; i < first+n; i++ {
		h := mem.Extent{Region: host, Off: int64(i) * size, Len: size}
		p := mem.Extent{Region: pages, Off: int64(i*5%1024) * size, Len: size}
		if toHost {
			h, p = p, h
		}
		b.Dst, b.Src = append(b.Dst, p), append(b.Src, h)
	}
	return &b
}

// TestSmallBatchesShareChunks: where the planner asks for large chunks, batches behind two chunks in flight wait until they
// fill one, and then travel by one launch and one copy. On an idle device the first goes at once.
func TestSmallBatchesShareChunks(t *testing.T) {
	const block, each, chunk = 4 << 10, 16, 16 * 16 * 4 << 10 // a chunk is 16 batches
	for _, toHost := range []bool{false, true} {
		faults := fault.New(1, fault.Nth(sim.OpCopy, 0).Stall())
		dev := openSim(t, sim.Options{Faults: faults})
		host, pages := pinned(t, dev, 1024*block), deviceMemory(t, dev, 1024*block)
		var ctas []int
		d := gathering(chunk)
		s := open(t, launches{dev, &ctas}, streamcopy.Options{Planner: d, StagingBytes: 4 * chunk})
		var tickets []*stream.Ticket
		submit := func(n int) {
			for range n {
				tickets = append(tickets, submitOK(t, s, blocksBatch(host, pages, len(tickets)*each, each, block, toHost)))
			}
		}
		submit(2) // at once: two small chunks are in flight
		if n := faults.Seen(sim.OpCallLaunch); n != 2 && !toHost || n < 1 {
			t.Errorf("to host %t: two batches on an idle device made %d launches", toHost, n)
		}
		submit(15)
		time.Sleep(5 * time.Millisecond)
		if n := faults.Seen(sim.OpCallLaunch); n != 2 {
			t.Errorf("to host %t: %d launches, though the third chunk is not full", toHost, n)
		}
		submit(1 + 16)
		submit(3) // a chunk that never fills: it goes when the others are done
		faults.Release()
		for _, ticket := range tickets {
			if err := ticket.Wait(deadline(t)); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := faults.Seen(sim.OpLaunch), int64(5); got != want {
			t.Errorf("to host %t: %d launches, want %d", toHost, got, want)
		}
		if got, want := faults.Seen(sim.OpCopy), int64(5); got != want || faults.Seen(sim.OpBatch) != 0 {
			t.Errorf("to host %t: %d copies, want %d", toHost, got, want)
		}
		for i, n := range ctas {
			if n > 32 || i > 1 && i < 4 && n != 32 {
				t.Errorf("chunk %d is gathered by %d thread blocks, want 32", i, n)
			}
		}
		if len(d.told) != 2 {
			t.Errorf("the planner heard of %d batches, want those that had a chunk for themselves", len(d.told))
		}
		closeStream(t, s)
	}
}

// TestOverlappingBatchesShareNoChunk: what two batches write to the same place is not written by one launch, nor by one call
// of a copy engine: neither has an order.
func TestOverlappingBatchesShareNoChunk(t *testing.T) {
	const block, each, chunk = 4 << 10, 16, 16 * 16 * 4 << 10
	for _, toHost := range []bool{false, true} {
		faults := fault.New(1, fault.Nth(sim.OpCopy, 0).Stall())
		dev := openSim(t, sim.Options{Faults: faults})
		host, pages := pinned(t, dev, 1024*block), deviceMemory(t, dev, 1024*block)
		s := open(t, dev, streamcopy.Options{Planner: gathering(chunk), StagingBytes: 4 * chunk})
		var last *stream.Ticket
		for i := range 2 + 16 {
			first := i * each
			if i == 2+9 { // writes what the one before does
				first -= each
			}
			b := blocksBatch(host, pages, first, each, block, toHost)
			last = submitOK(t, s, b)
		}
		faults.Release()
		if err := last.Wait(deadline(t)); err != nil {
			t.Fatal(err)
		}
		if got, want := faults.Seen(sim.OpLaunch), int64(4); got != want { // two alone, nine batches, seven batches
			t.Errorf("to host %t: %d launches, want %d", toHost, got, want)
		}
		closeStream(t, s)
	}
}

// TestLargeBatchesAreCutAsPlanned: a batch is one chunk if the planner says so, and is cut into several where it says
// nothing; chunks are never longer than a quarter of staging memory.
func TestLargeBatchesAreCutAsPlanned(t *testing.T) {
	const block, blocks = 16 << 10, 1024
	for _, tt := range []struct {
		chunk, staging int64
		launches       int64
	}{
		{16 << 20, 64 << 20, 1}, {8 << 20, 64 << 20, 2}, {0, 64 << 20, 4}, {16 << 20, 16 << 20, 4}, {0, 16 << 20, 4},
	} {
		faults := fault.New(1)
		dev := openSim(t, sim.Options{Faults: faults})
		host, pages := pinned(t, dev, blocks*block), deviceMemory(t, dev, blocks*block)
		s := open(t, dev, streamcopy.Options{Planner: gathering(tt.chunk), StagingBytes: tt.staging})
		complete(t, s, blocksBatch(host, pages, 0, blocks, block, true))
		if n := faults.Seen(sim.OpLaunch); n != tt.launches || faults.Seen(sim.OpCopy) != n {
			t.Errorf("chunk %d, staging %d: %d launches, %d copies, want %d", tt.chunk, tt.staging, n, faults.Seen(sim.OpCopy), tt.launches)
		}
		closeStream(t, s)
	}
}

// TestBackgroundDefaults: under the background policy queues are of high priority, and staging memory holds four chunks that
// are worth the wait for multiprocessors.
func TestBackgroundDefaults(t *testing.T) {
	dev := &asked{Device: openSim(t, sim.Options{})}
	host, pages := pinned(t, dev.Device, 1<<20), deviceMemory(t, dev.Device, 1<<20)
	s := open(t, dev, streamcopy.Options{})
	closeStream(t, s)
	if dev.high != 0 || dev.bytes != 0 {
		t.Errorf("without the policy: %d queues of high priority, %d bytes of memory", dev.high, dev.bytes)
	}
	s = open(t, dev, streamcopy.Options{Path: stream.PathStaged, Policy: plan.Policy{Goal: plan.Background}})
	complete(t, s, blocksBatch(host, pages, 0, 8, 1<<10, true))
	if dev.high != 2 || dev.bytes < 256<<20 {
		t.Errorf("under the policy: %d queues of high priority, %d bytes of staging", dev.high, dev.bytes)
	}
	closeStream(t, s)
}

// asked is a device that notes what it is asked for.
type asked struct {
	*sim.Device
	high  int   // queues
	bytes int64 // of device memory
}

func (d *asked) OpenQueue(o device.QueueOptions) (device.Queue, error) {
	if o.HighPriority {
		d.high++
	}
	return d.Device.OpenQueue(o)
}

func (d *asked) Alloc(n int64, o device.AllocOptions) (*mem.Region, error) {
	d.bytes += n
	return d.Device.Alloc(n, o)
}

// TestConformanceSharedChunks runs the suite where batches share chunks, with the queues' work interleaved in a seeded
// order, and little staging memory, so that it is used again and again.
func TestConformanceSharedChunks(t *testing.T) {
	streamtest.Run(t, func(t *testing.T) streamtest.Env {
		t.Helper()
		return simEnv(t, sim.Options{Interleave: &sim.Interleave{Seed: 1}}, streamcopy.Options{
			Planner: gathering(4 << 10), Descriptors: 1024, StagingBytes: 16 << 10,
		})
	})
}

// TestSharedChunksKeepOrder sends bytes through a chain of regions in batches of all sizes, none waited for but the last,
// so that one chunk holds several and one batch several chunks, and directions change.
func TestSharedChunksKeepOrder(t *testing.T) {
	const n = 64 << 10
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 13))
		dev := openSim(t, sim.Options{})
		s := open(t, dev, streamcopy.Options{Planner: gathering(16 << 10), StagingBytes: 64 << 10})
		host, gpu := pinned(t, dev, n), deviceMemory(t, dev, n)
		want := make([]byte, n)
		for i := range want {
			want[i] = byte(rng.Uint32())
		}
		copy(host.Bytes(), want)
		var last *stream.Ticket
		for round := range 20 { // to the device and back
			for at := int64(0); at < n; {
				size := min(1+rng.Int64N(40<<10)>>rng.IntN(12), n-at)
				b := &mem.Batch{Dst: []mem.Extent{{Region: gpu, Off: at, Len: size}}, Src: []mem.Extent{{Region: host, Off: at, Len: size}}}
				if round%2 == 1 {
					b.Dst, b.Src = b.Src, b.Dst
				}
				last = submitOK(t, s, b)
				at += size
			}
			if round%2 == 0 { // what comes back must have been there
				last = submitOK(t, s, &mem.Batch{Dst: []mem.Extent{mem.All(host)}, Src: []mem.Extent{mem.All(pinned(t, dev, n))}})
			}
		}
		if err := last.Wait(deadline(t)); err != nil {
			t.Fatal(err)
		}
		if string(host.Bytes()) != string(want) {
			t.Errorf("seed %d: the bytes did not come through", seed)
		}
		closeStream(t, s)
	}
}
