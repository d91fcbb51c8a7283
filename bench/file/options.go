package file

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/uring"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// Work is read or write.
type Work string

// Kinds of work.
const (
	Read  Work = "read"
	Write Work = "write"
)

// Order is the order of the blocks of a batch in the file.
type Order string

// Orders of blocks.
const (
	Sequential Order = "sequential"
	Scattered  Order = "scattered"
)

// From is the state of the file for reads. Writes are always Cold.
type From string

// States of files.
const (
	Cold      From = "cold"
	PageCache From = "page-cache"
)

// End is the memory from or to which blocks are copied.
type End string

// Kinds of memory.
const (
	Host   End = "host"
	Device End = "device"
)

// Contender is a stream to compare with raw access.
type Contender struct {
	Name string
	Ends []End // supported ends; default all
	Open func(ctx context.Context) (stream.Stream, error)
}

// Files opens a scratch file for the streams of contenders. The names of scratch files are removed
// soon afterwards. closing closes the file; the streams are closed before.
type Files func(name string, bytes int64) (r *mem.Region, closing func(context.Context) error, err error)

// Options are the options of a run. Zero values have defaults.
type Options struct {
	Dir string // directory of the scratch files
	// Bytes is the length of each of the two scratch files, one for reads and one for writes.
	// Default 1 GiB, or less for budgets below half a minute.
	Bytes int64
	Sizes []int64 // block sizes; default 4 KiB to 16 MiB
	// AtOnce is the length of a batch in bytes, at least 8 blocks. Default 64 MiB or 2048 blocks,
	// whichever is less.
	AtOnce int64
	Work   []Work  // default both
	Orders []Order // default both
	From   []From  // default both
	Ends   []End   // default Host, and Device if there is a device
	Seed   uint64

	// Budget is the duration of the run including its setup, counted from Began (zero: the call of
	// Run). Places that do not fit are skipped and listed in the report. The first measured places
	// are far apart. Default 1 minute.
	Budget time.Duration
	Began  time.Time

	Depths  []int // depths of io_uring; default 8, 32 and 128
	Threads []int // default 1, 4, 16 and 32

	// Device pins the host memory and has the memory for Device. Nil: pageable host memory.
	Device     device.Device
	Contenders []Contender
	Files      Files // required if there are contenders

	// Progress is called before every place and after the last one. Notice is called if not all
	// places will fit. Both are optional.
	Progress func(done, total int, what string)
	Notice   func(text string)

	// For tests: the clock of the budget, and the maximum number of rounds of a place.
	clock  func() time.Time
	rounds int
}

// Limits of Options.
const (
	leastBytes = 64 << 20 // minimum length of a scratch file, if no length is given
	align      = 4 << 10  // alignment of blocks; the largest alignment that O_DIRECT requires
	MaxSize    = 64 << 20
	MaxAtOnce  = 1 << 30 // limit of a registered buffer of io_uring
	MaxBytes   = 1 << 44
	MaxThreads = 1024
)

func list[T any](v *[]T, to ...T) {
	if len(*v) == 0 {
		*v = to
	}
}

func (o Options) withDefaults() Options {
	list(&o.Sizes, 4<<10, 16<<10, 64<<10, 256<<10, 1<<20, 4<<20, 16<<20)
	list(&o.Work, Read, Write)
	list(&o.Orders, Sequential, Scattered)
	list(&o.From, Cold, PageCache)
	list(&o.Ends, Host)
	list(&o.Depths, 8, 32, 128)
	list(&o.Threads, 1, 4, 16, 32)
	if o.Budget == 0 {
		o.Budget = time.Minute
	}
	if o.Bytes == 0 {
		// On a slow disk, writing the files and reading them into the page cache takes long.
		o.Bytes = min(1<<30, max(leastBytes, int64(o.Budget/time.Second)*(32<<20)))
		o.Bytes = max(o.Bytes, slices.Max(o.Sizes))
	}
	if o.rounds == 0 {
		o.rounds = maxRounds
	}
	if o.clock == nil {
		o.clock = time.Now
	}
	if o.Began.IsZero() {
		o.Began = o.clock()
	}
	return o
}

// Validate reports all errors. It opens nothing.
func (o Options) Validate() error {
	o = o.withDefaults()
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	if o.Dir == "" {
		bad("no directory is given for the scratch files")
	}
	for _, n := range o.Sizes {
		if n < align || n%align != 0 || n > MaxSize {
			bad("blocks of %d bytes are not multiples of %d up to %d", n, align, MaxSize)
		}
	}
	if largest := slices.Max(o.Sizes); o.Bytes < largest || o.Bytes > MaxBytes || o.Budget < 0 {
		bad("a scratch file of %d bytes is not %d (a block) to %d, or the budget of %v is negative", o.Bytes, largest, int64(MaxBytes), o.Budget)
	}
	if o.AtOnce < 0 || o.AtOnce > MaxAtOnce || o.AtOnce > o.Bytes {
		bad("%d bytes at once are not 1 to %d, of a scratch file of %d; 0 is the default", o.AtOnce, int64(MaxAtOnce), o.Bytes)
	}
	oneOf(bad, "work", o.Work, Read, Write)
	oneOf(bad, "order", o.Orders, Sequential, Scattered)
	oneOf(bad, "place of the file", o.From, Cold, PageCache)
	oneOf(bad, "end", o.Ends, Host, Device)
	between(bad, "threads", o.Threads, MaxThreads)
	between(bad, "requests of io_uring", o.Depths, uring.MaxDepth)
	if o.Device == nil && slices.Contains(o.Ends, Device) {
		bad("memory of a device is selected, but no device is given")
	}
	if len(o.Contenders) > 0 && o.Files == nil {
		bad("no function to open files for the streams is given")
	}
	if len(errs) == 0 && len(o.places()) == 0 {
		bad("only writes are selected, which are measured cold only: no point is left")
	}
	return errors.Join(errs...)
}

func oneOf[T ~string](bad func(string, ...any), what string, v []T, known ...T) {
	for _, x := range v {
		if !slices.Contains(known, x) {
			bad("unknown %s %q: must be one of %q", what, x, known)
		}
	}
}

func between(bad func(string, ...any), what string, v []int, most int) {
	for _, n := range v {
		if n < 1 || n > most {
			bad("%d %s: must be 1 to %d", n, what, most)
		}
	}
}

// places returns the places to measure.
func (o *Options) places() []Place {
	var all []Place
	for _, w := range o.Work {
		for _, f := range o.From {
			if w == Write && f == PageCache {
				continue
			}
			for _, order := range o.Orders {
				for _, n := range o.Sizes {
					all = append(all, Place{Work: w, From: f, Order: order, Size: n})
				}
			}
		}
	}
	return all
}

// Limits of the default number of blocks in a batch.
const (
	batchBytes = 64 << 20
	mostBlocks = 2048
	fewBlocks  = 8
)

// blocks returns the number of blocks of the given size in a batch.
func (o *Options) blocks(size int64) int64 {
	n := o.AtOnce / size
	if o.AtOnce == 0 {
		n = min(batchBytes/size, mostBlocks)
	}
	return min(max(n, fewBlocks), o.Bytes/size)
}
