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

// Opener opens a stream on the measured device for a contender that is no baseline. An error that
// wraps ErrNotSupported leaves the contender out of the run, and its reason is in the report.
type Opener func(c Contender) (stream.Stream, error)

// Options configure a run. Zero values are the defaults, which are smaller for the simulated
// device.
type Options struct {
	// Sizes are block sizes in bytes and Counts numbers of blocks. The cells are their product,
	// without cells of more than Bytes. Sizes without counts have one cell each, as large as Bytes
	// and MaxCount allow. Without both the cells are a default grid of sizes, and of counts at 4
	// KiB. Full selects the whole table.
	Sizes  []int64
	Counts []int
	Full   bool
	// Bytes is the maximum of a repetition in each direction. Default 512 MiB, with Full 4 GiB
	// (simulated: 4 MiB).
	Bytes int64
	// BatchBlocks is the maximum number of blocks of a batch. A larger cell is several batches,
	// submitted without waiting and timed together. Default 32768.
	BatchBlocks int
	// PoolBytes is the device memory over which blocks are scattered. Twice as much is allocated.
	// Default 2 GiB (simulated: 64 MiB), or Bytes if that is more.
	PoolBytes int64
	// ReferenceBytes is the length of the one large copy. Default 256 MiB (simulated: 4 MiB).
	ReferenceBytes int64
	// Reps is the number of repetitions of a point. Zero divides Budget among the points: at least
	// 6 repetitions each, and fewer blocks for contenders that are far slower than others.
	Reps int
	// Budget is the duration of the run including its set-up, counted from Began (zero: the call of
	// Run). Points that do not fit are left out and named. The first measured points are far apart
	// in the grid. Default 2 minutes, with Full 8 (simulated: 30 s), and more with Peer.
	// With Reps there is no limit.
	Budget time.Duration
	Began  time.Time
	// Contenders are compared at every cell. Default: all but the policies that give up bandwidth.
	Contenders []Contender
	// SoftNIC includes NICs in software among the default contenders instead of the NICs of the
	// machine.
	SoftNIC bool
	// OpenChannel opens NICChannel and NICSoftChannel; nil: they are not supported. Memory
	// registers the memory for them and for streams over NICs; it may be nil.
	OpenChannel ChannelOpener
	Memory      measure.Memory
	// Directions and Layouts (host arrangements) to measure. Default: all.
	Directions []Direction
	Layouts    []Layout
	// SlotBytes is the length of a slot of HostSlots. Default 256 KiB. Only block sizes that divide
	// it are measured in this arrangement; of the default sizes those of 4 and 8 KiB.
	SlotBytes int64
	// Form is the form of batches. Default Pages, as in engines. PagesSummed needs sizes of whole
	// leaves, and limits the default grid to them.
	Form Form
	Seed uint64

	// Peer is an optional second device. Streams of the first copy between the two. PeerBytes is
	// the maximum of a repetition, PeerReferenceBytes the length of the one large copy. Twice the
	// larger of the two is allocated on each device. Default 512 MiB and 1 GiB (simulated: 4 MiB
	// each).
	Peer                          device.Device
	PeerBytes, PeerReferenceBytes int64
	PeerContenders                []Contender // default: the function of the same name

	// Progress, if set, is called before every point. Notice, if set, is called if not all points
	// will fit.
	Progress func(done, total int, what string)
	Notice   func(text string)

	clock func() time.Time // of the budget; tests set it
}

// Limits of a point.
const (
	MinSize  = 256
	MaxSize  = 16 << 20
	MaxCount = 100_000

	MaxPoolBytes = 1 << 43 // also for copies between devices
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

// defaultBudget adds the time of optional parts to that of the grid.
func (o *Options) defaultBudget(grid time.Duration) time.Duration {
	if o.Peer != nil {
		grid += grid / 4
	}
	return grid
}

// def sets a default.
func def[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// Validate reports every problem of the options on a device, before anything is opened.
func (o Options) Validate(i device.Info) error {
	o = o.withDefaults(i)
	return o.validate()
}

// validate reports every problem. The defaults must be filled in.
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
