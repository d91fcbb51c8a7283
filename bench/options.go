package bench

import (
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
)

// Opener opens a stream on the measured device that moves everything by one path; PathNone is the stream's own choice.
// An error that wraps ErrNotSupported leaves the path out of the run, with the reason in the report.
type Opener func(path stream.Path) (stream.Stream, error)

// Options says what to measure. Zero values take the defaults of the device: those of a GPU, or smaller ones for the
// simulated device.
type Options struct {
	Sizes []int64 // block sizes in bytes; default 4 KiB, 16 KiB, 64 KiB, 1 MiB
	// Bytes is moved at every repetition of a point. Default 512 MiB (simulated: 16 MiB).
	Bytes int64
	// PoolBytes is the device memory over which blocks are scattered; twice that is allocated. Default 2 GiB (simulated:
	// 64 MiB).
	PoolBytes int64
	// ReferenceBytes is the length of the one large copy. Default 1 GiB (simulated: 32 MiB).
	ReferenceBytes int64
	// BatchBytes is what one batch of a repetition moves. Default 64 MiB (simulated: 4 MiB).
	BatchBytes int64
	Reps       int // repetitions that count, after one that does not; default 5
	// Paths are forced one after the other; PathNone measures the stream's own choice. Default: all and the choice.
	Paths []stream.Path
	// Paged submits page lists (mem.Paged) in place of lists of extents.
	Paged bool
	// Samples is the number of batches timed for the latency. Default 2000 (simulated: 500).
	Samples int
	Seed    uint64
	// Progress, where set, is called before every point.
	Progress func(done, total int, what string)
}

// The default sizes of blocks and paths.
var (
	defaultSizes = []int64{4 << 10, 16 << 10, 64 << 10, 1 << 20}
	defaultPaths = []stream.Path{stream.PathCopyEngine, stream.PathCopyEngineBatch, stream.PathKernel, stream.PathNone}
)

func (o Options) withDefaults(i device.Info) Options {
	d := Options{Bytes: 512 << 20, PoolBytes: 2 << 30, ReferenceBytes: 1 << 30, BatchBytes: 64 << 20, Samples: 2000}
	if simulated(i) {
		d = Options{Bytes: 16 << 20, PoolBytes: 64 << 20, ReferenceBytes: 32 << 20, BatchBytes: 4 << 20, Samples: 500}
	}
	def := func(v *int64, to int64) {
		if *v == 0 {
			*v = to
		}
	}
	def(&o.Bytes, d.Bytes)
	def(&o.PoolBytes, max(d.PoolBytes, o.Bytes, o.ReferenceBytes))
	def(&o.ReferenceBytes, min(d.ReferenceBytes, o.PoolBytes))
	def(&o.BatchBytes, d.BatchBytes)
	if o.Reps == 0 {
		o.Reps = 5
	}
	if o.Samples == 0 {
		o.Samples = d.Samples
	}
	if len(o.Sizes) == 0 {
		o.Sizes = defaultSizes
	}
	if len(o.Paths) == 0 {
		o.Paths = defaultPaths
	}
	return o
}

// validate reports everything wrong at once. It expects defaults to be filled in.
func (o *Options) validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	for _, s := range o.Sizes {
		switch {
		case s < wordBytes || s%wordBytes != 0:
			bad("block size %d is not a positive multiple of %d bytes", s, wordBytes)
		case s > o.Bytes:
			bad("block size %d is more than the %d bytes of a repetition", s, o.Bytes)
		}
	}
	if o.Bytes < 0 || o.Bytes > o.PoolBytes {
		bad("%d bytes a repetition do not fit the pool of %d", o.Bytes, o.PoolBytes)
	}
	if o.ReferenceBytes <= 0 || o.ReferenceBytes > o.PoolBytes {
		bad("the large copy of %d bytes does not fit the pool of %d", o.ReferenceBytes, o.PoolBytes)
	}
	if o.ReferenceBytes%wordBytes != 0 || o.PoolBytes%wordBytes != 0 || o.Bytes%wordBytes != 0 {
		bad("bytes, pool and large copy are multiples of %d bytes", wordBytes)
	}
	if o.BatchBytes < 0 {
		bad("%d bytes a batch is negative", o.BatchBytes)
	}
	if o.Reps < 0 || o.Samples < 0 {
		bad("%d repetitions and %d samples: neither may be negative", o.Reps, o.Samples)
	}
	for _, p := range o.Paths {
		if p == stream.PathPosix {
			bad("path %s copies files, not device memory", p)
		}
	}
	return errors.Join(errs...)
}

func simulated(i device.Info) bool { return i.Driver == "sim" }
