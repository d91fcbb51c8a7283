package calibrate

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/measure"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// Defaults of Options.
const (
	DefaultBudget = 2 * time.Second
	// DefaultBytes is more than the GPU's address translation caches reach: blocks of a cache of keys and values lie
	// scattered over gigabytes, and batches are slower for it.
	DefaultBytes = 1 << 30
	// MinBytes is what is made do with where DefaultBytes are not to be had.
	MinBytes = 64 << 20
	// MaxBytes is more than any device has.
	MaxBytes = 1 << 43
)

// Opener opens a stream of the device on which every batch takes path, with so many thread blocks; zero for a path that
// takes none. What the device lacks is ErrNotSupported.
type Opener func(path stream.Path, ctas int) (stream.Stream, error)

// NIC is the path by RDMA NICs, which the Opener opens, and what these have to be told.
type NIC struct {
	Path   stream.Path // stream.PathNIC or stream.PathNICSoft
	Memory measure.Memory
}

// Options says how a device is measured. The zero value is the default.
type Options struct {
	// Key is what the profile will be stored under.
	Key plan.Key
	// NIC is measured beside the device's own paths. Nil: there is none.
	NIC *NIC
	// Budget is how long measuring should take. All points are measured once even if that takes longer. Zero:
	// DefaultBudget.
	Budget time.Duration
	// Wait is how long to wait for a device that others use to become idle, before giving up. Zero: not at all.
	Wait time.Duration
	// Sizes are those of single copies, Counts the numbers of copies in a batch; both ascend, two at least. Zero: those of
	// plan.Default.
	Sizes, Counts []int64
	// Bytes of device memory, and as much pinned host memory, over which blocks are scattered. Zero: DefaultBytes, or
	// what there is, MinBytes at least.
	Bytes int64
	// Progress, where it is not nil, is called now and then with what was done, of how much.
	Progress func(done, total int, what string)
	// Clock keeps the budget; single times are the streams' own. Default: the real clock.
	Clock clockwork.Clock
}

// Validate reports every field that is out of range.
func (o Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("calibrate: "+format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	if o.Budget < 0 {
		bad("budget %v is negative", o.Budget)
	}
	if o.Wait < 0 {
		bad("wait %v is negative", o.Wait)
	}
	if o.Bytes < 0 || o.Bytes > MaxBytes {
		bad("%d bytes of memory are not 0 to %d", o.Bytes, int64(MaxBytes))
	}
	for i, steps := range [][]int64{o.Sizes, o.Counts} {
		if len(steps) > 0 && (!slices.IsSorted(steps) || steps[0] < 1 || len(steps) < 2) {
			bad("%s %v do not ascend from 1", [...]string{"sizes", "counts"}[i], steps)
		}
	}
	return errors.Join(errs...)
}

func (o *Options) setDefaults() {
	d := plan.Default()
	if o.Budget == 0 {
		o.Budget = DefaultBudget
	}
	if len(o.Sizes) == 0 {
		o.Sizes = d.Sizes
	}
	if len(o.Counts) == 0 {
		o.Counts = d.Counts
	}
	if o.Clock == nil {
		o.Clock = clockwork.NewRealClock()
	}
}

// variant is a path with a number of thread blocks.
type variant struct {
	path stream.Path
	ctas int
	// sides are the placements on the host side for which it is measured, ways the directions.
	sides []plan.Side
	ways  []plan.Direction
	// most is the longest batch that is measured, in bytes.
	most int64
}

// paged reports whether batches that measure v are page lists. They cost the CPU less than lists of
// extents, so that times of small copies are the device's, and a NIC can copy several pages with one
// request. Copy engines, and copies within the device, are measured with lists of extents.
func (v *variant) paged(dir plan.Direction) bool {
	switch v.path {
	case stream.PathKernel, stream.PathStaged, stream.PathNIC, stream.PathNICSoft:
		return dir != plan.D2D
	default:
		return false
	}
}

func (v *variant) String() string {
	if v.ctas == 0 {
		return v.path.String()
	}
	return fmt.Sprintf("%s, %d thread blocks", v.path, v.ctas)
}

// variants returns the paths and thread block counts to measure. nic may be nil.
func variants(nic *NIC) []*variant {
	var (
		bus       = []plan.Direction{plan.H2D, plan.D2H}
		all       = []plan.Direction{plan.H2D, plan.D2H, plan.D2D}
		scattered = []plan.Side{plan.Scattered}
		both      = []plan.Side{plan.Contiguous, plan.Scattered}
	)
	list := []*variant{
		{stream.PathCopyEngine, 0, both, all, maxBytes},
		{stream.PathKernel, 16, both, all, maxBytes},
		{stream.PathKernel, 8, scattered, all, maxBytes},
	}
	for _, n := range []int{4, 2, 1} {
		list = append(list, &variant{stream.PathKernel, n, scattered, bus, fewBytes})
	}
	// Of the host's side a staged copy takes what a copy engine does: see plan.
	list = append(list, &variant{stream.PathStaged, 32, []plan.Side{plan.Contiguous}, bus, maxBytes})
	if nic != nil {
		list = append(list, &variant{nic.Path, 0, both, bus, maxBytes})
	}
	return list
}
