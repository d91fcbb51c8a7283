package file

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
)

// Direct says whether files and a device's memory are to exchange bytes with no way through the host: cuFile with GPU Direct
// Storage.
type Direct uint8

// The values of Direct.
const (
	DirectAuto    Direct = iota // where that is there, or the profile says so
	DirectRequire               // or fail, and say what is missing
	DirectNever                 // no cuFile
)

var directs = [...]string{DirectAuto: "auto", DirectRequire: "require", DirectNever: "never"}

// String returns "auto", "require" or "never".
func (d Direct) String() string {
	if int(d) < len(directs) {
		return directs[d]
	}
	return fmt.Sprintf("direct(%d)", uint8(d))
}

// ParseDirect reads what Direct.String writes. Anything else is ErrInvalid.
func ParseDirect(name string) (Direct, error) {
	for d, s := range directs {
		if s == name {
			return Direct(d), nil
		}
	}
	return 0, fmt.Errorf("direct is auto, require or never, not %q: %w", name, errdefs.ErrInvalid)
}

// Defaults and limits of Options.
const (
	DefaultDepth      = 256
	DefaultTransfers  = 128
	DefaultChunkBytes = 1 << 20
	DefaultChunks     = 48
	MaxTransfers      = 4096

	// mostWorkers bounds the threads that wait for a transfer each: more made no disk faster, and io_uring needs none.
	mostWorkers = 32
)

// Options says how a stream is opened. The zero value moves files and memory of the host.
type Options struct {
	// Depth is how many batches may be accepted and unresolved. Zero: DefaultDepth.
	Depth int
	// Transfers is how many transfers a queue may have under way, over all batches; workers are as many, but 32 at most. Zero:
	// DefaultTransfers.
	Transfers int
	// ChunkBytes is how long a transfer is at most, and a chunk of staging memory: a multiple of Align. Zero: DefaultChunkBytes.
	ChunkBytes int64
	// Chunks is how many chunks of staging memory there are, allocated when one is first needed. Zero: DefaultChunks.
	Chunks int
	// Device page-locks staging memory, which Copy reaches. Nil: batches have memory of the host only.
	Device device.Device
	// Copy moves between staging memory and Device's memory. It stays the caller's, and outlives the stream.
	Copy stream.Stream
	// Path has all batches go by one path, where the memory lets them; PathNone has the profile choose.
	Path stream.Path
	// Direct is about CuFile.
	Direct Direct
	// CuFile says how Device's memory is reached by cuFile.
	CuFile CuFileOptions
	// Profile says what has been measured. Nil: nothing has been.
	Profile *Profile
}

// CuFileOptions say how cuFile is used.
type CuFileOptions struct {
	// Storage is Device's way to files. It stays the caller's, and outlives the files. Nil: there is no cuFile.
	Storage device.Storage
	// Queues is by how many queues of the device transfers go, asynchronously; zero: by workers that wait for each.
	Queues int
}

// Validate reports every field that is out of range.
func (o Options) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
		}
	}
	check(o.Depth >= 0, "depth %d is negative", o.Depth)
	check(o.Transfers >= 0 && o.Transfers <= MaxTransfers, "%d transfers are not 0 to %d", o.Transfers, MaxTransfers)
	check(o.ChunkBytes >= 0 && o.ChunkBytes%Align == 0, "chunks of %d bytes are not a multiple of %d", o.ChunkBytes, Align)
	check(o.Chunks >= 0, "%d chunks", o.Chunks)
	check(int(o.Direct) < len(directs), "%s", o.Direct)
	check(o.Path == stream.PathNone || o.Path.MovedBy() == stream.MovedByHost, "path %s moves no files", o.Path)
	check(o.CuFile.Queues >= 0, "%d queues of cuFile", o.CuFile.Queues)
	check(o.CuFile.Queues == 0 || o.Device != nil, "queues of cuFile are a device's")
	check(o.Copy == nil || o.Device != nil, "a stream of copies needs the device that it copies for")
	return errors.Join(errs...)
}

func (o Options) withDefaults() Options {
	o.Depth = cmp.Or(o.Depth, DefaultDepth)
	o.Transfers = cmp.Or(o.Transfers, DefaultTransfers)
	o.ChunkBytes = cmp.Or(o.ChunkBytes, DefaultChunkBytes)
	o.Chunks = cmp.Or(o.Chunks, DefaultChunks)
	return o
}

// begun is how many transfers queues have at most: as many as are under way wait there to be next. So a queue goes on by itself, and
// not when a batch's goroutine, which may be in a call of Copy or wait for a CPU, comes to hand it another.
func (o *Options) begun() int { return 2 * o.Transfers }
