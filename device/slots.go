package device

import (
	"fmt"
	"math"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// SlotAllocator is a Device that registers long memory with its driver in several calls, because
// drivers limit the length of a registration.
type SlotAllocator interface {
	Device
	// AllocSlots is AllocHost for n slots of stride bytes. If stride is a multiple of the page
	// size, no slot is in two registrations.
	AllocSlots(n, stride int64) (*mem.Region, error)
}

// AllocSlots returns pinned memory for n slots of stride bytes. It uses the AllocSlots method of d
// if d is a SlotAllocator.
func AllocSlots(d Device, n, stride int64) (*mem.Region, error) {
	if n <= 0 || stride <= 0 || n > math.MaxInt64/stride {
		return nil, fmt.Errorf("allocate %d slots of %d bytes: %w", n, stride, errdefs.ErrInvalid)
	}
	if s, ok := d.(SlotAllocator); ok {
		return s.AllocSlots(n, stride)
	}
	return d.AllocHost(n * stride)
}

// Noter is a Device that reports notes for the user, for example that memory is on a different NUMA
// node than requested.
type Noter interface {
	// Notes returns the notes so far. It is safe for concurrent use.
	Notes() []string
}
