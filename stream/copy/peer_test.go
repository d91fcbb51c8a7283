package copy_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvlane/kvlane/device/cuda/cudatest"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/stream/streamtest"
)

var peerPaths = []stream.Path{stream.PathNone, stream.PathCopyEngine, stream.PathKernel}

// simPeers opens two simulated devices that reach each other's memory.
func simPeers(tb testing.TB, so sim.Options) (near, far *sim.Device) {
	tb.Helper()
	far = openSim(tb, sim.Options{Index: 1})
	near = openSim(tb, so)
	if err := errors.Join(near.EnablePeer(far), far.EnablePeer(near)); err != nil {
		tb.Fatal(err)
	}
	return near, far
}

// peerEnv returns the environment of the conformance suite between the memories of two devices,
// with a stream of the first. The suite accesses both memories through the second device, so that
// the first does the stream's work only.
func peerEnv(tb testing.TB, near, far device.Device, o streamcopy.Options) streamtest.Env {
	tb.Helper()
	e := env(tb, near, o)
	e.A, e.B = streamtest.DeviceMemory(near), streamtest.DeviceMemory(far)
	e.A.Write, e.A.Read = e.B.Write, e.B.Read
	return e
}

func TestConformancePeers(t *testing.T) {
	for _, p := range peerPaths {
		t.Run(pathName(p), func(t *testing.T) {
			if p != stream.PathNone {
				testkit.SkipRace(t, "TestConformanceSim runs each path")
			}
			streamtest.Run(t, func(t *testing.T) streamtest.Env {
				t.Helper()
				so := sim.Options{Faults: fault.New(1)}
				near, far := simPeers(t, so)
				e := peerEnv(t, near, far, streamcopy.Options{Path: p})
				e.Plan, e.Work = so.Faults, sim.OpWork
				return e
			})
		})
	}
}

// TestPeerBatches checks that batches between two devices use the copy engine or the kernel, and
// that the planner gets these paths. Without peer access a batch is refused.
func TestPeerBatches(t *testing.T) {
	near, far := openSim(t, sim.Options{}), openSim(t, sim.Options{Index: 1})
	reported := &fixedPlanner{choice: plan.Choice{Path: stream.PathKernel}}
	s := open(t, near, streamcopy.Options{Planner: reported})
	defer closeStream(t, s)
	a, b := streamtest.DeviceMemory(near).Alloc(t, 1<<20), streamtest.DeviceMemory(far).Alloc(t, 1<<20)
	if _, err := s.Submit(t.Context(), streamtest.Strided(a, b, 10, 100)); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("without access: %v", err)
	}
	if err := near.EnablePeer(far); err != nil {
		t.Fatal(err)
	}
	between := plan.PathSet(stream.PathCopyEngine, stream.PathKernel)
	for _, tt := range []struct {
		name string
		b    *mem.Batch
		want bool
	}{
		{"pull", streamtest.Strided(a, b, 10, 100), true},
		{"push", streamtest.Strided(b, a, 1000, 100), true},
		{"pull pages", benchPaged(a, b, 2, 8, 1<<10), true},
		{"push pages", benchPaged(b, a, 2, 8, 1<<10), true},
		{"within", streamtest.Strided(a, a, 1, 100), false},
		{"from the host", streamtest.Strided(a, pinned(t, near, 1<<20), 1000, 100), false},
	} {
		if tt.name == "within" {
			tt.b.Src[0].Off = 1000
		}
		ticket := submitOK(t, s, tt.b)
		if err := ticket.Wait(deadline(t)); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if dir := reported.asked[len(reported.asked)-1].Dir; (dir == plan.Peer) != tt.want {
			t.Errorf("%s: the planner got %s", tt.name, dir)
		}
		if can := reported.can[len(reported.can)-1]; tt.want && can != between {
			t.Errorf("%s: it may go by %b", tt.name, can)
		}
	}
}

// cudaPeers opens two GPUs that reach each other's memory, or skips the test.
func cudaPeers(tb testing.TB) (near, far device.Device) {
	tb.Helper()
	near = cudatest.Open(tb)
	driver, err := cuda.Load()
	if err != nil {
		tb.Fatal(err)
	}
	if n, err := driver.Count(); err != nil || n < 2 {
		testkit.Skip(tb, "cuda-peer", fmt.Sprintf("%d GPUs, %v", n, err))
	}
	far, err = driver.Open(1, cuda.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := far.Close(); err != nil {
			tb.Error(err)
		}
	})
	for _, pair := range [][2]device.Device{{near, far}, {far, near}} {
		p, ok := pair[0].(device.Peerer)
		if !ok {
			tb.Fatalf("%T does not support peers", near)
		}
		if err := p.EnablePeer(pair[1]); err != nil {
			if errors.Is(err, errdefs.ErrNotSupported) {
				testkit.Skip(tb, "cuda-peer", err.Error())
			}
			tb.Fatal(err)
		}
	}
	return near, far
}

func TestConformancePeersCUDA(t *testing.T) {
	near, far := cudaPeers(t)
	for _, p := range peerPaths {
		t.Run(pathName(p), func(t *testing.T) {
			streamtest.Run(t, func(t *testing.T) streamtest.Env {
				t.Helper()
				return peerEnv(t, near, far, streamcopy.Options{Path: p})
			})
		})
	}
}

// BenchmarkPeersCUDA measures copies of pages that are scattered on both sides, in both directions
// and with different numbers of thread blocks. One large copy gives the maximum rate.
func BenchmarkPeersCUDA(b *testing.B) {
	near, far := cudaPeers(b)
	const arena = 1 << 30
	here, there := streamtest.DeviceMemory(near).Alloc(b, arena), streamtest.DeviceMemory(far).Alloc(b, arena)
	whole := &mem.Batch{Dst: []mem.Extent{mem.All(here)}, Src: []mem.Extent{mem.All(there)}}
	benchCUDA(b, near, "1GiB/pull", stream.PathCopyEngine, whole, 1)
	benchCUDA(b, near, "1GiB/push", stream.PathCopyEngine, &mem.Batch{Dst: whole.Src, Src: whole.Dst}, 1)
	for _, size := range []int64{256, 512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20} {
		all := int(arena / size)
		rng := rand.New(rand.NewPCG(1, uint64(size)))
		slots := rng.Perm(all)
		var pairs []mem.PageSlot
		for i, page := range rng.Perm(all)[:min(all, 100_000)] {
			pairs = append(pairs, mem.PageSlot{Page: uint32(page), Slot: uint32(slots[i])})
		}
		for route, o := range map[string]streamcopy.Options{
			"copy-engine": {Path: stream.PathCopyEngine}, "8 CTAs": {Path: stream.PathKernel, CTAs: 8},
			"32 CTAs": {Path: stream.PathKernel, CTAs: 32}, "132 CTAs": {Path: stream.PathKernel, CTAs: 132},
		} {
			for dir, name := range map[mem.Direction]string{mem.ToPages: "pull", mem.ToSlots: "push"} {
				batch := &mem.Batch{Paged: &mem.Paged{Dir: dir, Groups: []mem.PageGroup{{
					Planes: []mem.Plane{{Region: here, Stride: size, Bytes: size}},
					Slots:  mem.Slots{Region: there, Stride: size},
					Pairs:  pairs,
				}}}}
				o.QueueDepth = 2
				benchStream(b, near, fmt.Sprintf("%dB/%s/%s", size, route, name), o, batch)
			}
		}
	}
}
