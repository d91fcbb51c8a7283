package file

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
)

// Direct selects whether bytes are moved directly between files and device memory, without host
// memory, by cuFile with GPU Direct Storage.
type Direct uint8

// The values of Direct.
const (
	DirectAuto    Direct = iota // direct if available, unless the profile prefers another path
	DirectRequire               // direct, or an error with the reason
	DirectNever                 // without cuFile
)

var directs = [...]string{DirectAuto: "auto", DirectRequire: "require", DirectNever: "off"}

// String returns "auto", "require" or "off".
func (d Direct) String() string {
	if int(d) < len(directs) {
		return directs[d]
	}
	return fmt.Sprintf("direct(%d)", uint8(d))
}

// ParseDirect parses the result of Direct.String. It returns ErrInvalid for any other name.
func ParseDirect(name string) (Direct, error) {
	for d, s := range directs {
		if s == name {
			return Direct(d), nil
		}
	}
	return 0, fmt.Errorf("direct %q: must be auto, require or off: %w", name, errdefs.ErrInvalid)
}

// The defaults and limits of Options.
const (
	DefaultDepth      = 256
	DefaultTransfers  = 128
	DefaultChunkBytes = 1 << 20
	DefaultChunks     = 48
	MaxTransfers      = 4096

	// mostWorkers limits the number of threads that each wait for a transfer. More threads made no
	// disk faster, and io_uring needs none.
	mostWorkers = 32
)

// Options configure a stream. The zero value moves files to and from host memory.
type Options struct {
	// Depth is the maximum number of unresolved batches. Zero: DefaultDepth.
	Depth int
	// Transfers is the maximum number of transfers in flight on a queue, over all batches. It is
	// also the number of workers, up to 32. Zero: DefaultTransfers.
	Transfers int
	// ChunkBytes is the maximum length of a transfer and the size of a chunk of staging memory. It
	// must be a multiple of Align. Zero: DefaultChunkBytes.
	ChunkBytes int64
	// Chunks is the number of chunks of staging memory. They are allocated on first use. Zero:
	// DefaultChunks.
	Chunks int
	// Device page-locks staging memory, so that Copy can access it. Nil: batches have only host
	// memory.
	Device device.Device
	// Copy copies between staging memory and Device's memory. The caller owns it and closes it
	// after the stream.
	Copy stream.Stream
	// Path makes all batches use one path, if their memory permits. With PathNone the profile
	// selects the path.
	Path stream.Path
	// Direct selects the use of CuFile.
	Direct Direct
	// CuFile configures the access to Device's memory by cuFile.
	CuFile CuFileOptions
	// Profile contains measurements. Nil: none.
	Profile *Profile
}

// CuFileOptions configure cuFile.
type CuFileOptions struct {
	// Storage moves bytes between files and Device's memory. The caller owns it and closes it after
	// the files. Nil: no cuFile.
	Storage device.Storage
	// Queues is the number of device queues that run transfers asynchronously. Zero: workers wait
	// for each transfer.
	Queues int
}

// Validate returns an error for every field that is out of range.
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
	check(o.Path == stream.PathNone || o.Path.MovedBy() == stream.MovedByHost, "path %s does not support files", o.Path)
	check(o.CuFile.Queues >= 0, "%d queues of cuFile", o.CuFile.Queues)
	check(o.CuFile.Queues == 0 || o.Device != nil, "queues of cuFile need a device")
	check(o.Copy == nil || o.Device != nil, "a copy stream needs its device")
	return errors.Join(errs...)
}

func (o Options) withDefaults() Options {
	o.Depth = cmp.Or(o.Depth, DefaultDepth)
	o.Transfers = cmp.Or(o.Transfers, DefaultTransfers)
	o.ChunkBytes = cmp.Or(o.ChunkBytes, DefaultChunkBytes)
	o.Chunks = cmp.Or(o.Chunks, DefaultChunks)
	return o
}

// begun returns the maximum number of begun transfers of a queue: Transfers in flight, and as many
// waiting, so that the queue continues while a batch's goroutine is in a call of Copy or waits for
// a CPU.
func (o *Options) begun() int { return 2 * o.Transfers }
