package copy_test

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// paths are the values of Options.Path that the conformance suite uses.
var paths = append([]stream.Path{stream.PathNone}, stream.Paths(stream.MovedByDevice)...)

func pathName(p stream.Path) string {
	if p == stream.PathNone {
		return "chosen"
	}
	return p.String()
}

// openSim opens a simulated device. Its Close must succeed when the test ends.
func openSim(tb testing.TB, o sim.Options) *sim.Device {
	tb.Helper()
	dev, err := sim.Open(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := dev.Close(); err != nil {
			tb.Error(err)
		}
	})
	return dev
}

// env returns the environment of the conformance suite on dev.
func env(tb testing.TB, dev device.Device, o streamcopy.Options) streamtest.Env {
	tb.Helper()
	return streamtest.Env{
		Open: func(tb testing.TB, depth int) stream.Stream {
			tb.Helper()
			o := o
			o.QueueDepth = depth
			return open(tb, dev, o)
		},
		A: streamtest.Pinned(dev), B: streamtest.DeviceMemory(dev), Path: o.Path,
		Sums: sums, Unreachable: streamtest.Pageable(tb, 4096),
	}
}

// sums are the paths on which a stream must fill mem.Paged.Sums if requested.
var sums = map[stream.Path]bool{
	stream.PathKernel: true, stream.PathStaged: true,
}

func open(tb testing.TB, dev device.Device, o streamcopy.Options) *streamcopy.Stream {
	tb.Helper()
	s, err := streamcopy.Open(dev, o)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func simEnv(t *testing.T, so sim.Options, o streamcopy.Options) streamtest.Env {
	t.Helper()
	so.Faults = fault.New(1)
	e := env(t, openSim(t, so), o)
	e.Plan, e.Work = so.Faults, sim.OpWork
	return e
}

func TestConformanceSim(t *testing.T) {
	for _, p := range paths {
		t.Run(pathName(p), func(t *testing.T) {
			streamtest.Run(t, func(t *testing.T) streamtest.Env {
				t.Helper()
				return simEnv(t, sim.Options{}, streamcopy.Options{Path: p, StagingBytes: 256 << 10})
			})
		})
	}
}

// TestConformanceOneByOne uses a device whose driver supports single copies only.
func TestConformanceOneByOne(t *testing.T) {
	testkit.SkipRace(t, "TestConformanceSim runs the same goroutines")
	streamtest.Run(t, func(t *testing.T) streamtest.Env {
		t.Helper()
		faults := fault.New(1)
		e := env(t, limitedDevice{openSim(t, sim.Options{Faults: faults}), bare}, streamcopy.Options{Path: stream.PathCopyEngine})
		e.Plan, e.Work = faults, sim.OpWork
		return e
	})
}

// TestConformanceSmallRing uses a descriptor ring that wraps many times in a batch.
func TestConformanceSmallRing(t *testing.T) {
	testkit.SkipRace(t, "TestConformanceSim runs the same goroutines")
	streamtest.Run(t, func(t *testing.T) streamtest.Env {
		t.Helper()
		return simEnv(t, sim.Options{}, streamcopy.Options{Path: stream.PathKernel, Descriptors: streamcopy.MinDescriptors})
	})
}

// dice is a planner that selects a random path.
type dice struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func newDice(seed uint64) *dice { return &dice{rng: rand.New(rand.NewPCG(seed, 11))} }

func (d *dice) Choose(_ plan.Request, can plan.Paths) plan.Choice {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := stream.Paths()
	for {
		if p := all[d.rng.IntN(len(all))]; can.Has(p) {
			return plan.Choice{Path: p, Reason: "thrown"}
		}
	}
}

func (d *dice) Observe(plan.Choice, plan.Request, time.Duration) {}

// TestConformanceInterleaved runs the suite with a random path for each batch on devices that
// interleave the work of their queues in seeded orders. Batches must stay in order, whatever queues
// their paths use.
func TestConformanceInterleaved(t *testing.T) {
	for seed := range uint64(2) {
		streamtest.Run(t, func(t *testing.T) streamtest.Env {
			t.Helper()
			return simEnv(t, sim.Options{Interleave: &sim.Interleave{Seed: seed}}, streamcopy.Options{
				Planner: newDice(seed), Descriptors: 1024, StagingBytes: 64 << 10,
			})
		})
	}
}
