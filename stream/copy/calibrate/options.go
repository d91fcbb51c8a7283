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

// The defaults and limits of Options.
const (
	DefaultBudget = 2 * time.Second
	// DefaultBytes exceeds the range of the GPU's address translation caches. The blocks of a KV
	// cache are scattered over gigabytes too, which makes their batches slower.
	DefaultBytes = 1 << 30
	// MinBytes is the minimum memory to use if DefaultBytes are not available.
	MinBytes = 64 << 20
	// MaxBytes is more than the memory of any device.
	MaxBytes = 1 << 43
)

// Opener opens a stream of the device on which every batch takes path, with ctas thread blocks, or
// zero if the path uses none. The error wraps ErrNotSupported if the device does not support the
// path.
type Opener func(path stream.Path, ctas int) (stream.Stream, error)

// NIC describes the path over RDMA NICs, which the Opener opens, and registers memory with them.
type NIC struct {
	Path   stream.Path // stream.PathNIC or stream.PathNICSoft
	Memory measure.Memory
}

// Options configures a calibration. The zero value selects the defaults.
type Options struct {
	// Key is the key of the profile.
	Key plan.Key
	// NIC is measured in addition to the device's own paths. Nil: none.
	NIC *NIC
	// Budget is the intended duration of the measurements. All points are measured once even if
	// that takes longer. Zero: DefaultBudget.
	Budget time.Duration
	// Wait bounds the wait for a device in use to become idle. Zero: no wait.
	Wait time.Duration
	// Sizes are the sizes of single copies, Counts the numbers of copies in a batch. Both are
	// ascending and have at least two values. Empty: those of plan.Default.
	Sizes, Counts []int64
	// Bytes is the size of the device memory, and of the pinned host memory, over which blocks are
	// scattered. Zero: DefaultBytes, or less if that is not available, but at least MinBytes.
	Bytes int64
	// Progress, if not nil, is called repeatedly with the completed and the total work.
	Progress func(done, total int, what string)
	// Clock measures the budget; the streams measure the times of batches. Default: the system
	// clock.
	Clock clockwork.Clock
}

// Validate returns an error for every field that is out of range.
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
	// sides are the host arrangements for which it is measured, ways the directions.
	sides []plan.Side
	ways  []plan.Direction
	// most is the size of the longest measured batch, in bytes.
	most int64
}

// paged reports whether batches that measure v are page lists. Page lists cost the CPU less than
// lists of extents, so that the device determines the times of small copies, and a NIC can copy
// several pages with one request. Copy engines, and copies within the device, are measured with
// lists of extents.
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
	// Copying the host side of a staged copy takes as long as by copy engine: see plan.
	list = append(list, &variant{stream.PathStaged, 32, []plan.Side{plan.Contiguous}, bus, maxBytes})
	if nic != nil {
		list = append(list, &variant{nic.Path, 0, both, bus, maxBytes})
	}
	return list
}
