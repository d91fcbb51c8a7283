package soft

import (
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// Mover is the DMA engine of a software NIC. Its methods are safe for concurrent use: every engine calls them.
type Mover interface {
	// Reaches returns nil where the mover can read and write the region, else why not. It is called when memory is
	// registered.
	Reaches(r *mem.Region) error
	// Move starts a transfer: the copies of t.Batch, in any order, since no destination overlaps another extent of the same
	// transfer. Transfers of one caller happen as if each had landed before the next one started. Move may wait for room,
	// not for the bytes. The mover calls t.Done once when nothing touches the memory any more, from any goroutine,
	// within Move or later; it must not fail to, for completions and Close wait for it.
	Move(t *Transfer)
}

// CPUMover copies between regions that the CPU reaches, within Move. Whatever waits for its engine waits for the copy.
type CPUMover struct{}

// Reaches returns ErrNotSupported for memory without a CPU address.
func (CPUMover) Reaches(r *mem.Region) error {
	if r.Bytes() == nil {
		return fmt.Errorf("copy by CPU: it does not reach the %s: %w", r, errdefs.ErrNotSupported)
	}
	return nil
}

// Move copies.
func (CPUMover) Move(t *Transfer) {
	for dst, src := range t.Batch.Extents() {
		copy(dst.Bytes(), src.Bytes())
	}
	t.Done(nil)
}
