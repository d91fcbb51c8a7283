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

// Opener opens a stream on the measured device for a contender that is no baseline. An error that wraps ErrNotSupported
// leaves the contender out of the run, with the reason in the report.
type Opener func(c Contender) (stream.Stream, error)

// Options says what to measure. Zero values take the defaults of the device: those of a GPU, or smaller ones for the
// simulated device.
type Options struct {
	// Sizes are block sizes in bytes and Counts numbers of blocks; the cells are their product, but for those of more than
	// Bytes. Sizes without counts have one cell each, as large as Bytes and MaxCount allow. With neither the cells are a
	// default grid of sizes, and of counts at 4 KiB; Full makes it the whole table.
	Sizes  []int64
	Counts []int
	Full   bool
	// Bytes is the most that a repetition moves, each way. Default 512 MiB, with Full 4 GiB (simulated: 4 MiB).
	Bytes int64
	// BatchBlocks is the most blocks of one batch: a cell of more is submitted as several batches, one after the other
	// without waiting, and timed together. Default 32768.
	BatchBlocks int
	// PoolBytes is the device memory over which blocks are scattered; twice that is allocated. Default 2 GiB (simulated:
	// 64 MiB), or Bytes if that is more.
	PoolBytes int64
	// ReferenceBytes is the length of the one large copy, of which there are some beside every point. Default 256 MiB
	// (simulated: 4 MiB).
	ReferenceBytes int64
	// Reps is how many repetitions of a point count. Zero shares Budget among the points: at least 6 each, and fewer blocks than the
	// cell says for contenders that are far slower than others.
	Reps int
	// Budget is how long the run takes in all, set-up included, from Began on (zero: from the call of Run). Points that do not fit are left
	// out and named: those that are measured first lie far apart. Default 2 minutes, with Full 8 (simulated: 30 s), and more where Forms, a
	// Product or a Peer are measured too; with Reps no limit.
	Budget time.Duration
	Began  time.Time
	// Contenders are compared with one another on every cell. Default: all but the policies that give up bandwidth.
	Contenders []Contender
	// SoftNIC has NICs in software among the default contenders in place of the machine's.
	SoftNIC bool
	// OpenChannel opens the contenders NICChannel and NICSoftChannel; nil: there is none. Memory is for them and for streams
	// over NICs; nil: nothing has to know.
	OpenChannel ChannelOpener
	Memory      measure.Memory
	// Directions, and Layouts (placements), that are measured. Default: all.
	Directions []Direction
	Layouts    []Layout
	// SlotBytes is the length of a slot of HostSlots. Default 256 KiB. Only blocks that fill it in whole numbers are measured in
	// that placement, of the default sizes those of 4 and 8 KiB.
	SlotBytes int64
	// Form is how batches say what they copy. Default Pages, as engines do. PagesSummed needs sizes of whole leaves, the only ones of the
	// default grid then.
	Form Form
	// Forms compares all forms of batches in addition: what checksums on the way cost, and Submit.
	Forms bool
	Seed  uint64

	// Peer, where set, is a second device: streams of the first copy between the two. PeerBytes is the most that a repetition
	// moves, PeerReferenceBytes the length of the one large copy; as much memory as the longer has is allocated twice on each.
	// Default 512 MiB and 1 GiB (simulated: 4 MiB each).
	Peer                          device.Device
	PeerBytes, PeerReferenceBytes int64
	PeerContenders                []Contender // default: the function of the same name

	// Progress, where set, is called before every point, and Notice with what is to be known before the run ends: that not all points fit.
	Progress func(done, total int, what string)
	Notice   func(text string)

	clock func() time.Time // of the budget; tests set it
}

// Bounds of a point.
const (
	MinSize  = 256
	MaxSize  = 16 << 20
	MaxCount = 100_000

	MaxPoolBytes = 1 << 43 // and of what two devices copy
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

// defaultBudget adds to that of the grid what else is measured.
func (o *Options) defaultBudget(grid time.Duration) time.Duration {
	if o.Forms {
		grid += grid / 4
	}
	if o.Peer != nil {
		grid += grid / 4
	}
	return grid
}

// def gives v a default.
func def[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// Validate reports everything that Run would refuse on a device, at once and before anything is opened for it.
func (o Options) Validate(i device.Info) error {
	o = o.withDefaults(i)
	return o.validate()
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
	if o.Form != Lists && o.Form != Pages && o.Form != PagesSummed {
		bad("there is no form of batches %q", o.Form)
	}
	for _, s := range o.Sizes {
		if o.Form == PagesSummed && s%mem.LeafBytes != 0 {
			bad("checksums on the way are of leaves of %d bytes, and blocks of %d are not", mem.LeafBytes, s)
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
		bad("%d repetitions, batches of %d blocks and a budget of %v: none may be negative", o.Reps, o.BatchBlocks, o.Budget)
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
