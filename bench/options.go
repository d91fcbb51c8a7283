package bench

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

// Opener opens a stream on the measured device for a contender that is not a baseline. If the error
// wraps ErrNotSupported, the contender is skipped and the report has the reason.
type Opener func(c Contender) (stream.Stream, error)

// Options are the options of a run. Zero values have defaults, which are smaller for the simulated
// device.
type Options struct {
	// Sizes are block sizes in bytes. Counts are numbers of blocks. The cells are all combinations
	// with at most Bytes bytes. Sizes without Counts have one cell each, with as many blocks as
	// Bytes and MaxCount permit. Without both there is a default grid of sizes, and of counts for 4
	// KiB. Full selects a larger grid.
	Sizes  []int64
	Counts []int
	Full   bool
	// Bytes is the maximum number of bytes of a repetition in each direction. Default 512 MiB, with
	// Full 4 GiB (simulated: 4 MiB).
	Bytes int64
	// BatchBlocks is the maximum number of blocks in a batch. A larger cell is submitted as several
	// batches without waiting, which are timed together. Default 32768.
	BatchBlocks int
	// PoolBytes is the length of the device memory over which blocks are scattered. Twice as much
	// is allocated. Default 2 GiB (simulated: 64 MiB), or Bytes if that is more.
	PoolBytes int64
	// ReferenceBytes is the length of a large copy. Default 256 MiB (simulated: 4 MiB).
	ReferenceBytes int64
	// Reps is the number of repetitions of a point. Zero: as many as the budget permits, at least
	// 6. Contenders that are far slower than others then copy fewer blocks.
	Reps int
	// Budget is the duration of the run including its setup, counted from Began (zero: the call of
	// Run). Points that do not fit are skipped and listed in the report. The first measured points
	// are far apart in the grid. The default is 2 minutes, or 8 minutes with Full, and longer with
	// Peer. For a simulated device it is 30 s. If Reps is set, there is no limit.
	Budget time.Duration
	Began  time.Time
	// Contenders are compared at every cell. Default: all except policies that trade bandwidth for
	// latency.
	Contenders []Contender
	// SoftNIC adds software NICs to the default contenders instead of hardware NICs.
	SoftNIC bool
	// OpenChannel opens NICChannel and NICSoftChannel. Nil: they are not supported. Memory
	// registers the memory for them and for streams over NICs. Optional.
	OpenChannel ChannelOpener
	Memory      measure.Memory
	// Directions and Layouts are the directions and host arrangements to measure. Default: all.
	Directions []Direction
	Layouts    []Layout
	// SlotBytes is the length of a slot with HostSlots. Default 256 KiB. Only block sizes that
	// divide it are measured in this arrangement; of the default sizes, 4 and 8 KiB.
	SlotBytes int64
	// Form is the form of batches. Default Pages, as in engines. PagesSummed requires block sizes
	// that are multiples of a leaf; the default grid is restricted to them.
	Form Form
	Seed uint64

	// Peer is an optional second device. Streams of the first device copy between the two.
	// PeerBytes is the maximum number of bytes of a repetition, PeerReferenceBytes the length of a
	// large copy. Twice the larger of the two is allocated on each device. Default 512 MiB and 1
	// GiB (simulated: 4 MiB each).
	Peer                          device.Device
	PeerBytes, PeerReferenceBytes int64
	PeerContenders                []Contender // default: PeerContenders()

	// Progress is called before every point. Notice is called if not all points will fit. Both are
	// optional.
	Progress func(done, total int, what string)
	Notice   func(text string)

	clock func() time.Time // clock of the budget, for tests
}

// Limits of a point.
const (
	MinSize  = 256
	MaxSize  = 16 << 20
	MaxCount = 100_000

	MaxPoolBytes = 1 << 43 // limit for copies between devices too
	MaxReps      = 1 << 20

	minReps = 6
	maxReps = 999
)

func (o Options) withDefaults(i device.Info) Options {
	d := Options{
		Bytes: 512 << 20, PoolBytes: 2 << 30, ReferenceBytes: 256 << 20, Budget: 2 * time.Minute,
		PeerBytes: 512 << 20, PeerReferenceBytes: 1 << 30,
	}
	if o.Full {
		d.Bytes, d.Budget = 4<<30, 8*time.Minute
	}
	if simulated(i) {
		d = Options{
			Bytes: 4 << 20, PoolBytes: 64 << 20, ReferenceBytes: 4 << 20, Budget: 30 * time.Second,
			PeerBytes: 4 << 20, PeerReferenceBytes: 4 << 20,
		}
	}
	def(&o.Bytes, d.Bytes)
	def(&o.PoolBytes, max(d.PoolBytes, o.Bytes, o.ReferenceBytes))
	def(&o.ReferenceBytes, min(d.ReferenceBytes, o.PoolBytes))
	def(&o.BatchBlocks, 32<<10)
	def(&o.SlotBytes, 256<<10)
	def(&o.PeerBytes, d.PeerBytes)
	def(&o.PeerReferenceBytes, d.PeerReferenceBytes)
	def(&o.Form, Pages)
	if len(o.Contenders) == 0 {
		o.Contenders = defaultContenders(o.SoftNIC)
	}
	if len(o.PeerContenders) == 0 {
		o.PeerContenders = PeerContenders()
	}
	if o.Reps == 0 {
		def(&o.Budget, o.defaultBudget(d.Budget))
	}
	if o.clock == nil {
		o.clock = time.Now
	}
	if len(o.Directions) == 0 {
		o.Directions = []Direction{ToDevice, ToHost, Both}
	}
	if len(o.Layouts) == 0 {
		o.Layouts = slices.Clone(hostLayouts)
	}
	return o
}

// defaultBudget returns the budget for the grid plus the time for optional parts.
func (o *Options) defaultBudget(grid time.Duration) time.Duration {
	if o.Peer != nil {
		grid += grid / 4
	}
	return grid
}

// def sets *v to the default if it is zero.
func def[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// Validate reports all errors of the options for a device. It opens nothing.
func (o Options) Validate(i device.Info) error {
	o = o.withDefaults(i)
	return o.validate()
}

// validate reports all errors. Defaults must be set.
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
	if o.Form != Lists && o.Form != Pages && o.Form != PagesSummed {
		bad("unknown form of batches %q", o.Form)
	}
	for _, s := range o.Sizes {
		if o.Form == PagesSummed && s%mem.LeafBytes != 0 {
			bad("checksums by copies are of leaves of %d bytes, and blocks of %d are not", mem.LeafBytes, s)
		}
	}
	for _, n := range o.Counts {
		if n < 1 || n > MaxCount {
			bad("%d blocks are not between 1 and %d", n, MaxCount)
		}
	}
	if o.Bytes < 0 || o.Bytes > o.PoolBytes {
		bad("%d bytes a repetition do not fit the pool of %d", o.Bytes, o.PoolBytes)
	}
	if o.ReferenceBytes <= 0 || o.ReferenceBytes > o.PoolBytes {
		bad("the large copy of %d bytes does not fit the pool of %d", o.ReferenceBytes, o.PoolBytes)
	}
	o.validateLayouts(bad)
	if o.PeerBytes < 0 || o.PeerReferenceBytes < wordBytes || o.PeerReferenceBytes%wordBytes != 0 || o.PeerBytes%wordBytes != 0 {
		bad("%d bytes between devices and a large copy of %d are not multiples of %d bytes", o.PeerBytes, o.PeerReferenceBytes, wordBytes)
	}
	if o.ReferenceBytes%wordBytes != 0 || o.PoolBytes%wordBytes != 0 || o.Bytes%wordBytes != 0 {
		bad("bytes, pool and large copy are multiples of %d bytes", wordBytes)
	}
	for _, n := range []struct {
		name    string
		v, most int64
	}{
		{"bytes of the pool", o.PoolBytes, MaxPoolBytes},
		{"bytes between devices", o.PeerBytes, MaxPoolBytes},
		{"bytes of the large copy between devices", o.PeerReferenceBytes, MaxPoolBytes},
		{"repetitions", int64(o.Reps), MaxReps},
	} {
		if n.v > n.most {
			bad("%d %s are more than %d", n.v, n.name, n.most)
		}
	}
	if o.Reps < 0 || o.BatchBlocks < 0 || o.Budget < 0 {
		bad("%d repetitions, batches of %d blocks and a budget of %v: must not be negative", o.Reps, o.BatchBlocks, o.Budget)
	}
	for _, c := range o.Contenders {
		if _, err := ParseContender(c.Name()); err != nil {
			bad("path %s does not lead between host and device", c.Name())
		}
	}
	return errors.Join(errs...)
}

func (o *Options) validateLayouts(bad func(format string, args ...any)) {
	for _, l := range o.Layouts {
		if !slices.Contains(hostLayouts, l) {
			bad("the host's blocks do not lie %q", l)
		}
	}
	if o.SlotBytes < wordBytes || o.SlotBytes%wordBytes != 0 {
		bad("slots of %d bytes are not a positive multiple of %d bytes", o.SlotBytes, wordBytes)
	}
}

func simulated(i device.Info) bool { return i.Driver == "sim" }
