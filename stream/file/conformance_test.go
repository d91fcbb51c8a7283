package file_test

import (
	"errors"
	"testing"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/file"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// small has limits so small that every batch of the suite exceeds them.
var small = file.Options{Transfers: 3, ChunkBytes: 2 * file.Align, Chunks: 2}

func real(tb testing.TB) *files {
	tb.Helper()
	return &files{dir: openDir(tb, dirfs.OS(), tb.TempDir())}
}

// leaveOut skips the test with -short, if another run of the suite covers the same code.
func leaveOut(t *testing.T) {
	t.Helper()
	if testing.Short() {
		testkit.Skip(t, "long", "another run of the suite covers this; not with -short")
	}
}

func TestConformanceHost(t *testing.T) {
	leaveOut(t)
	streamtest.Run(t, func(t *testing.T) streamtest.Env {
		t.Helper()
		return env(real(t), host, file.Options{Path: stream.PathPosix})
	})
}

func TestConformanceSmall(t *testing.T) {
	streamtest.Run(t, func(t *testing.T) streamtest.Env {
		t.Helper()
		return env(real(t), host, small)
	})
}

// TestConformanceBuffered uses a file system that refuses O_DIRECT.
func TestConformanceBuffered(t *testing.T) {
	testkit.SkipRace(t, "TestConformanceSmall runs the same goroutines")
	streamtest.Run(t, func(t *testing.T) streamtest.Env {
		t.Helper()
		fs := real(t)
		fs.direct = refuseDirect
		return env(fs, host, small)
	})
}

// TestConformanceFaulty uses files without descriptors, whose reads fail and stall.
func TestConformanceFaulty(t *testing.T) {
	leaveOut(t)
	streamtest.Run(t, func(t *testing.T) streamtest.Env {
		t.Helper()
		plan := fault.New(1)
		e := env(faulty(t, plan), host, small)
		e.Plan, e.Work = plan, "read"
		return e
	})
}

// TestConformanceDevice reads through chunks, which a copy stream copies to device memory.
func TestConformanceDevice(t *testing.T) {
	testkit.SkipRace(t, "TestConformanceDeviceFaulty runs the same goroutines")
	streamtest.Run(t, func(t *testing.T) streamtest.Env {
		t.Helper()
		dev, copies := openSim(t, sim.Options{})
		return env(real(t), streamtest.DeviceMemory(dev), file.Options{Device: dev, Copy: copies, Transfers: 4, ChunkBytes: 4 * file.Align, Chunks: 3})
	})
}

// TestConformanceDeviceFaulty does the same with files that fail.
func TestConformanceDeviceFaulty(t *testing.T) {
	streamtest.Run(t, func(t *testing.T) streamtest.Env {
		t.Helper()
		plan := fault.New(1)
		dev, copies := openSim(t, sim.Options{})
		e := env(faulty(t, plan), streamtest.DeviceMemory(dev), file.Options{Device: dev, Copy: copies, Transfers: 4, ChunkBytes: 8 * file.Align, Chunks: 3})
		e.Plan, e.Work = plan, "read"
		return e
	})
}

func TestConformanceURing(t *testing.T) {
	s, err := file.Open(file.Options{Path: stream.PathURing})
	if errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(t, "uring", err.Error())
	}
	if err := errors.Join(err, s.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	streamtest.Run(t, func(t *testing.T) streamtest.Env {
		t.Helper()
		o := small
		o.Path = stream.PathURing
		return env(real(t), host, o)
	})
}

// TestConformanceCuFile reads into and writes from device memory without chunks, with workers that
// wait for each transfer and with queues of the device.
func TestConformanceCuFile(t *testing.T) {
	for name, queues := range map[string]int{"workers": 0, "queues": 2} {
		t.Run(name, func(t *testing.T) {
			streamtest.Run(t, func(t *testing.T) streamtest.Env {
				t.Helper()
				plan := fault.New(1)
				dev, _ := openSim(t, sim.Options{Faults: plan})
				o := file.Options{
					Device: dev, Transfers: 4, ChunkBytes: 4 * file.Align, Path: stream.PathCuFile,
					CuFile: file.CuFileOptions{Storage: openStorage(t, dev), Queues: queues},
				}
				e := env(real(t), streamtest.DeviceMemory(dev), o)
				e.Plan, e.Work = plan, sim.OpFileRead
				return e
			})
		})
	}
}
