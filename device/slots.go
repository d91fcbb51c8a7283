package device

import (
	"fmt"
	"math"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// SlotAllocator is a Device that registers long memory with its driver in several calls, since
// drivers bound the length of one.
type SlotAllocator interface {
	Device
	// AllocSlots is AllocHost for n slots of stride bytes. If stride is a multiple of the page
	// size, no slot is in two registrations.
	AllocSlots(n, stride int64) (*mem.Region, error)
}

// AllocSlots returns pinned memory for n slots of stride bytes, by AllocSlots of d if d has it.
func AllocSlots(d Device, n, stride int64) (*mem.Region, error) {
	if n <= 0 || stride <= 0 || n > math.MaxInt64/stride {
		return nil, fmt.Errorf("allocate %d slots of %d bytes: %w", n, stride, errdefs.ErrInvalid)
	}
	if s, ok := d.(SlotAllocator); ok {
		return s.AllocSlots(n, stride)
	}
	return d.AllocHost(n * stride)
}

// Noter is a Device that reports facts its user should know, such as memory that lies on another
// NUMA node than asked for.
type Noter interface {
	// Notes returns the facts so far. Safe for concurrent use.
	Notes() []string
}
