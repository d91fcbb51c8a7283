package copy_test

import (
	"math/rand/v2"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// stagedPlanner returns a planner that chooses the staged path with the given chunk size.
func stagedPlanner(chunk int64) *fixedPlanner {
	return &fixedPlanner{choice: plan.Choice{Path: stream.PathStaged, ChunkBytes: chunk, Reason: "planned"}}
}

// blocksBatch returns a batch of n blocks that are scattered in pages. They are adjacent in host
// memory, starting at block first.
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

// TestLargeBatchesAreCutAsPlanned checks that the planner's chunk size decides whether a batch is
// one chunk. Without a planned size a batch is cut into several chunks. A chunk is never larger
// than a quarter of the staging memory.
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
		s := open(t, dev, streamcopy.Options{Planner: stagedPlanner(tt.chunk), StagingBytes: tt.staging})
		complete(t, s, blocksBatch(host, pages, 0, blocks, block, true))
		if n := faults.Seen(sim.OpLaunch); n != tt.launches || faults.Seen(sim.OpCopy) != n {
			t.Errorf("chunk %d, staging %d: %d launches, %d copies, want %d", tt.chunk, tt.staging, n, faults.Seen(sim.OpCopy), tt.launches)
		}
		closeStream(t, s)
	}
}

// TestChunksOfLayers checks batches that report layers. If all layers have the same blocks, each
// layer is one chunk, whatever the planned size. Otherwise chunks have the planned size.
func TestChunksOfLayers(t *testing.T) {
	const piece, blocks, layers = 16 << 10, 128, 8
	for name, tt := range map[string]struct {
		same     bool // all layers have the same blocks
		chunk    int64
		launches int64
	}{
		"layers, long chunks":  {true, 64 << 20, layers},
		"layers, short chunks": {true, 1 << 20, layers},
		"other blocks":         {false, 4 << 20, layers / 2},
	} {
		faults := fault.New(1)
		dev := openSim(t, sim.Options{Faults: faults})
		slots, pages := pinned(t, dev, layers*blocks*piece), deviceMemory(t, dev, layers*blocks*piece)
		p := &mem.Paged{Dir: mem.ToPages, Completed: func(int, bool) {}}
		pairs := make([]mem.PageSlot, layers*blocks)
		for i := range pairs {
			pairs[i] = mem.PageSlot{Page: uint32(i * 5 % len(pairs)), Slot: uint32(i)}
		}
		for k := range int64(layers) {
			g := mem.PageGroup{Slots: mem.Slots{Region: slots, Stride: piece}, Planes: []mem.Plane{{Region: pages, Stride: piece, Bytes: piece}}, Pairs: pairs[k*blocks:][:blocks]}
			if tt.same {
				g.Slots.Stride, g.Planes[0].SlotOff = layers*piece, k*piece
				g.Planes[0].Base, g.Pairs = k*blocks*piece, pairs[:blocks]
				for i := range g.Pairs {
					g.Pairs[i].Page = uint32(i * 5 % blocks)
				}
			}
			p.Groups = append(p.Groups, g)
		}
		s := open(t, dev, streamcopy.Options{Planner: stagedPlanner(tt.chunk), StagingBytes: 64 << 20})
		complete(t, s, &mem.Batch{Paged: p})
		if n := faults.Seen(sim.OpLaunch); n != tt.launches {
			t.Errorf("%s: %d launches, want %d", name, n, tt.launches)
		}
		closeStream(t, s)
	}
}

// TestBackgroundDefaults checks the defaults of the background policy: queues of high priority, and
// staging memory for four chunks of the size at which waiting for multiprocessors pays.
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

// asked is a device that records its open queues and allocations.
type asked struct {
	*sim.Device
	high  int   // number of high-priority queues
	bytes int64 // bytes of device memory
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

// TestConformancePlannedChunks runs the conformance suite with planned chunk sizes and seeded
// interleaving of the queues. Staging memory is small, so that it is reused often.
func TestConformancePlannedChunks(t *testing.T) {
	testkit.SkipRace(t, "TestConformanceInterleaved runs the same goroutines")
	streamtest.Run(t, func(t *testing.T) streamtest.Env {
		t.Helper()
		return simEnv(t, sim.Options{Interleave: &sim.Interleave{Seed: 1}}, streamcopy.Options{
			Planner: stagedPlanner(4 << 10), Descriptors: 1024, StagingBytes: 16 << 10,
		})
	})
}

// TestChunksKeepOrder copies bytes through a chain of regions in batches of all sizes, with one or
// several chunks and changing directions. It waits only for the last batch.
func TestChunksKeepOrder(t *testing.T) {
	const n = 64 << 10
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 13))
		dev := openSim(t, sim.Options{})
		s := open(t, dev, streamcopy.Options{Planner: stagedPlanner(16 << 10), StagingBytes: 64 << 10})
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
			if round%2 == 0 { // the bytes that come back must have been on the device
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
