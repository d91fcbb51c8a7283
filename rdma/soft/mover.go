package soft

import (
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// Mover is the DMA engine of a software NIC. All engines use it, so its methods must be safe for
// concurrent use.
type Mover interface {
	// Reaches returns nil if the mover can read and write the region, otherwise the reason. It is
	// called when memory is registered.
	Reaches(r *mem.Region) error
	// Move starts a transfer. It may do the copies of t.Batch in any order; no destination overlaps
	// another extent of the transfer. Transfers of one caller must take effect in order. Move may
	// wait for space, but not for the bytes. The mover must call t.Done once, from any goroutine,
	// during or after Move, when the memory is no longer accessed. Completions and Close wait for
	// it.
	Move(t *Transfer)
}

// CPUMover copies memory with a CPU address. Move copies synchronously, so the engine waits for the
// copy.
type CPUMover struct{}

// Reaches returns ErrNotSupported for memory without a CPU address.
func (CPUMover) Reaches(r *mem.Region) error {
	if r.Bytes() == nil {
		return fmt.Errorf("copy by CPU: the CPU cannot reach the %s: %w", r, errdefs.ErrNotSupported)
	}
	return nil
}

// Move copies the bytes and completes the transfer.
func (CPUMover) Move(t *Transfer) {
	for dst, src := range t.Batch.Extents() {
		copy(dst.Bytes(), src.Bytes())
	}
	t.Done(nil)
}
