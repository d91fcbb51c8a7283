package blocks

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
)

// Options configure a run. Zero values are the defaults.
type Options struct {
	Sizes    []int64       // bytes of a piece; default 4 KiB, 64 KiB and 2 MiB
	Depths   []int         // requests in progress; default 1 and 64
	Rounds   int           // default 5
	Duration time.Duration // duration of a subject in each round; default 500 ms
	// Fabric has the NICs and the device for the subjects RDMA and Device. Nil: they are left out.
	Fabric *Fabric
	// Progress is called before each measurement and after the last one. Optional.
	Progress func(done, total int, what string)
}

// Limits of Options.
const (
	maxDepth  = 1024
	maxRounds = 1000
	maxBytes  = 4 << 30 // total length of the pieces in progress
)

// SetDefaults replaces zero values with defaults.
func (o *Options) SetDefaults() {
	if len(o.Sizes) == 0 {
		o.Sizes = []int64{4 << 10, 64 << 10, 2 << 20}
	}
	if len(o.Depths) == 0 {
		o.Depths = []int{1, 64}
	}
	if o.Rounds == 0 {
		o.Rounds = 5
	}
	if o.Duration == 0 {
		o.Duration = 500 * time.Millisecond
	}
}

// Validate reports all errors.
func (o *Options) Validate() error {
	var errs []error
	fail := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrInvalid))
	}
	for _, n := range o.Sizes {
		if n < 1 || n > blockio.MaxEntryBytes {
			fail("piece of %d bytes: must be 1 to %d", n, blockio.MaxEntryBytes)
		}
	}
	for _, n := range o.Depths {
		if n < 1 || n > maxDepth {
			fail("depth %d: must be 1 to %d", n, maxDepth)
		}
	}
	if need := slices.Max(o.Sizes) * int64(slices.Max(o.Depths)); need > maxBytes {
		fail("%d bytes of pieces in progress: must be at most %d", need, int64(maxBytes))
	}
	if o.Rounds < 1 || o.Rounds > maxRounds || o.Duration < 0 {
		fail("%d rounds of %v: must be 1 to %d, of a positive duration", o.Rounds, o.Duration, maxRounds)
	}
	return errors.Join(errs...)
}
