package soft

import (
	"fmt"
	"sync/atomic"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// Mover is the DMA engine of a software NIC. Its methods are safe for concurrent use: every engine calls them.
type Mover interface {
	// Reaches returns nil where the mover can read and write the region, else why not. It is called when memory is
	// registered.
	Reaches(r *mem.Region) error
	// Move starts a transfer: Src[i] to Dst[i] for every i, in any order, since no Dst overlaps another extent of the same
	// transfer. Transfers of one caller happen as if each had landed before the next one started. Move may wait for room,
	// not for the bytes. The mover calls t.Done once when nothing touches the memory any more, from any goroutine,
	// within Move or later; it must not fail to, for completions and Close wait for it.
	Move(t *Transfer)
}

// Transfer is what a Mover is asked to do at once. Dst and Src are the mover's until it calls Done.
type Transfer struct {
	Dst, Src []mem.Extent

	bytes  int64
	engine *engine
	err    error
	landed atomic.Bool
	read   bool    // of a single RDMA read; only with Options.Schedule
	items  []item  // which requests it is of, in order
	held   []*gate // what must not be closed before it has landed
}

// item is a run of requests of one queue pair, up to position end.
type item struct {
	qp  *qp
	end uint64
}

// Done ends the transfer. An error fails all of its requests: the mover need not say what of it has landed.
func (t *Transfer) Done(err error) {
	t.err = err
	e := t.engine // t is the engine's again once landed is set
	t.landed.Store(true)
	e.kick()
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
	for i := range t.Dst {
		copy(t.Dst[i].Bytes(), t.Src[i].Bytes())
	}
	t.Done(nil)
}

// NullMover moves nothing and is done at once: for measuring what all the rest costs.
type NullMover struct{}

// Reaches returns nil.
func (NullMover) Reaches(*mem.Region) error { return nil }

// Move does nothing.
func (NullMover) Move(t *Transfer) { t.Done(nil) }
