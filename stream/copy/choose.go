package copy

import (
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
)

// The size rule. Measured on an H100 over PCIe 5 x16: a copy costs about 1.5 us to submit and 2.6 us on the copy engine,
// whatever its size; a kernel launch about 8 us until it is done, and then it copies pieces of 2 KiB and more at the rate of
// the bus. So the engine wins up to fewRuns runs, and from largeRun bytes a run it is as fast (50 GB/s, with all runs in
// one call 54 GB/s) and takes no multiprocessors away from computing; between the two the kernel is up to 30 times faster.
const (
	fewRuns  = 3
	largeRun = 1 << 20
)

// The reasons that completions carry.
const (
	ReasonForced     = "the path was forced by an option"
	ReasonEmpty      = "nothing to copy"
	ReasonUnstarted  = "ended before it started"
	ReasonFewRuns    = "few runs: one copy each costs less than a kernel launch"
	ReasonLargeRuns  = "large runs: copy engines reach the rate of the bus and take no multiprocessors"
	ReasonManyPieces = "many small pieces: a kernel copies them in one launch"
	ReasonNoLauncher = "many runs, and the device has no kernels: many copies in one call"
	ReasonOnlyEngine = "the device has neither kernels nor batched copies"
)

// paths is what the stream's queue can do. A nil field is a path that is not there or not wanted.
type paths struct {
	forced   stream.Path
	launcher device.Launcher
	batcher  device.BatchCopier
}

// findPaths looks at what q offers. A forced path leaves only what it needs.
func findPaths(dev device.Device, q device.Queue, forced stream.Path) (paths, error) {
	launcher, _ := q.(device.Launcher)
	batcher, _ := q.(device.BatchCopier)
	lacks := func(what string) (paths, error) {
		return paths{}, fmt.Errorf("path %s on device %s %d: %s: %w", forced, dev.Info().Driver, dev.Info().Index, what, errdefs.ErrNotSupported)
	}
	switch forced {
	case stream.PathNone:
		return paths{launcher: launcher, batcher: batcher}, nil
	case stream.PathCopyEngine:
		return paths{forced: forced}, nil
	case stream.PathCopyEngineBatch:
		if batcher == nil {
			return lacks("its driver has no batched copies")
		}
		return paths{forced: forced, batcher: batcher}, nil
	case stream.PathKernel:
		if launcher == nil {
			return lacks("it runs no kernels")
		}
		return paths{forced: forced, launcher: launcher}, nil
	case stream.PathPosix:
	}
	return lacks("a copy stream does not have it")
}

// choose returns the path of a batch of so many runs and bytes.
func (p *paths) choose(runs int, bytes int64) (stream.Path, string) {
	switch {
	case runs == 0:
		return stream.PathNone, ReasonEmpty
	case p.forced != stream.PathNone:
		return p.forced, ReasonForced
	case runs <= fewRuns:
		return stream.PathCopyEngine, ReasonFewRuns
	case bytes/int64(runs) >= largeRun:
		if p.batcher != nil {
			return stream.PathCopyEngineBatch, ReasonLargeRuns
		}
		return stream.PathCopyEngine, ReasonLargeRuns
	case p.launcher != nil:
		return stream.PathKernel, ReasonManyPieces
	case p.batcher != nil:
		return stream.PathCopyEngineBatch, ReasonNoLauncher
	}
	return stream.PathCopyEngine, ReasonOnlyEngine
}
