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

// Work is the direction of the copies.
type Work string

// The kinds of work.
const (
	Read  Work = "read"
	Write Work = "write"
)

// Order is the order of a batch's blocks in the file.
type Order string

// The orders.
const (
	Sequential Order = "sequential"
	Scattered  Order = "scattered"
)

// From is the place of the file's data for reads. Writes are Cold.
type From string

// Places of the data of files.
const (
	Cold      From = "cold"
	PageCache From = "page-cache"
)

// End is the memory at the other end.
type End string

// The ends.
const (
	Host   End = "host"
	Device End = "device"
)

// Contender is a stream that is compared with the raw device.
type Contender struct {
	Name string
	Ends []End // supported ends; default all
	Open func(ctx context.Context) (stream.Stream, error)
}

// Files opens a scratch file for the streams of the contenders. The names of the files are removed
// soon afterwards. closing closes the file, after the streams.
type Files func(name string, bytes int64) (r *mem.Region, closing func(context.Context) error, err error)

// Options configure a run. Zero values are the defaults.
type Options struct {
	Dir string // directory of the scratch files
	// length of each of two scratch files, one of them only for writes; default 1 GiB, less for
	// budgets below half a minute
	Bytes int64
	Sizes []int64 // of blocks; default 4 KiB to 16 MiB
	// bytes of a batch, at least 8 blocks; default 64 MiB or 2048 blocks, whichever is less
	AtOnce int64
	Work   []Work  // default both
	Orders []Order // default both
	From   []From  // default both
	Ends   []End   // default Host, and Device if there is one
	Seed   uint64

	// Budget is the duration of the run including its set-up, counted from Began (zero: the call of
	// Run). Places that do not fit are left out and named. The first measured places are far apart.
	// Default 1 minute.
	Budget time.Duration
	Began  time.Time

	Depths  []int // of io_uring; default 8, 32 and 128
	Threads []int // default 1, 4, 16 and 32

	// Device pins the host memory, and has the memory of the end Device. Nil: plain host memory.
	Device     device.Device
	Contenders []Contender
	Files      Files // required with contenders

	// Progress, if set, is called before every place and after the last. Notice, if set, is called
	// if not all places will fit.
	Progress func(done, total int, what string)
	Notice   func(text string)

	// Tests set them: the clock of the budget, and the maximum number of rounds of a place.
	clock  func() time.Time
	rounds int
}

// Limits of Options.
const (
	leastBytes = 64 << 20 // of a scratch file without a given length
	align      = 4 << 10  // of blocks; the largest alignment of O_DIRECT
	MaxSize    = 64 << 20
	MaxAtOnce  = 1 << 30 // one registered buffer of io_uring
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
		// Writing the files and reading them into the page cache takes long on a slow disk.
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

// Validate reports every problem before anything is opened.
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

// Defaults and minimum of a batch.
const (
	batchBytes = 64 << 20
	mostBlocks = 2048
	fewBlocks  = 8
)

// blocks returns the number of blocks of a size in a batch.
func (o *Options) blocks(size int64) int64 {
	n := o.AtOnce / size
	if o.AtOnce == 0 {
		n = min(batchBytes/size, mostBlocks)
	}
	return min(max(n, fewBlocks), o.Bytes/size)
}
