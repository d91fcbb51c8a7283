package file_test

import (
	"testing"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/file"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// small has chunks, depths and numbers so small that every batch of the suite crosses their bounds.
var small = file.Options{Transfers: 3, ChunkBytes: 2 * file.Align, Chunks: 2}

func real(t *testing.T) *files {
	t.Helper()
	return &files{dir: openDir(t, dirfs.OS(), t.TempDir())}
}

func TestConformanceHost(t *testing.T) {
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

// TestConformanceBuffered has a file system that refuses O_DIRECT.
func TestConformanceBuffered(t *testing.T) {
	streamtest.Run(t, func(t *testing.T) streamtest.Env {
		t.Helper()
		fs := real(t)
		fs.direct = refuseDirect
		return env(fs, host, small)
	})
}

// TestConformanceFaulty has files without descriptors, whose reads fail and stall.
func TestConformanceFaulty(t *testing.T) {
	streamtest.Run(t, func(t *testing.T) streamtest.Env {
		t.Helper()
		plan := fault.New(1)
		e := env(faulty(t, plan), host, small)
		e.Plan, e.Work = plan, "read"
		return e
	})
}

// TestConformanceDevice goes through chunks, which a stream of copies takes to a device's memory.
func TestConformanceDevice(t *testing.T) {
	streamtest.Run(t, func(t *testing.T) streamtest.Env {
		t.Helper()
		dev, copies := openSim(t, sim.Options{})
		return env(real(t), streamtest.DeviceMemory(dev), file.Options{Device: dev, Copy: copies, Transfers: 4, ChunkBytes: 4 * file.Align, Chunks: 3})
	})
}

// TestConformanceDeviceFaulty has files fail beside a device.
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
