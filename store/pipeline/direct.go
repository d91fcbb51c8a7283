package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
)

// Direct lets tasks copy blocks between files and device memory without host memory.
type Direct struct {
	// Pool lends slots of device memory of the cache's slot size.
	Pool *mem.SlotPool
	// Require fails blocks whose direct transfer fails. Otherwise they are read through host
	// memory.
	Require bool
	// Dumps lends slots to dumps, so that dumps take none from loads. Dumps use it only without a
	// cache; otherwise it is nil.
	Dumps *mem.SlotPool
	// Heads is pinned memory for the header of the block in each slot of Dumps. HostSlot is pinned
	// memory of the size of a slot. Dumps use it for blocks that could not be written directly.
	// Both must be set if Dumps is.
	Heads    mem.Slots
	HostSlot *mem.Region
	// Reason is the reason in completions. It describes the path of the bytes.
	Reason string
}

// ErrNoLeaves is the reason why tasks whose copies have no checksums do not use direct storage.
var ErrNoLeaves = errors.New("direct storage needs verify device and pages of whole 4 KiB leaves: the blocks pass through host memory")

// DirectBlock is a block that was read into device memory without verification. Lookups never find
// it. It implements tier.Slot.
type DirectBlock struct {
	slot              mem.PoolSlot
	lent              bool
	always            bool
	sums              []uint64 // checksums in the header of the block
	Started, Finished time.Time
	// Failed is the reason why the block was not read directly. It is nil if the block was read, or
	// if no tier has it.
	Failed error
}

// Reset prepares b for Fetch. sums is memory for the checksums of all shards. If always is set, the
// block is read directly even if the cache would admit it.
func (b *DirectBlock) Reset(sums []uint64, always bool) {
	*b = DirectBlock{sums: sums[:0], always: always}
}

// Index returns the number of the slot in Direct.Pool.
func (b *DirectBlock) Index() uint32 { return b.slot.Index() }

// Extent returns the memory of the slot. The CPU cannot access it.
func (b *DirectBlock) Extent() mem.Extent { return b.slot.Extent() }

// Sums returns the checksums in the header of the block.
func (b *DirectBlock) Sums() []uint64 { return b.sums }

// Corrupt releases the slot. The block in the tier below is unaffected.
func (b *DirectBlock) Corrupt(error) { b.Release() }

// Release releases the slot. A second call has no effect.
func (b *DirectBlock) Release() {
	if b.lent {
		b.lent = false
		b.slot.Release()
	}
}

// readDirect reads a block from a tier into a slot of device memory. It waits for a slot for up to
// WaitMax. Errors wrap ErrNotDirect or ErrDirectFailed, unless ctx has ended.
func (p *Pipeline) readDirect(ctx context.Context, t tier.Tier, key block.Key, b *DirectBlock) error {
	r, ok := t.(tier.DirectReader)
	if !ok {
		return fmt.Errorf("%w: tier %s: %w", tier.ErrNotDirect, t.Name(), errdefs.ErrNotSupported)
	}
	if a, ok := p.Cache.(tier.Admitter); ok && !b.always && a.Admit(key) {
		return fmt.Errorf("%w: it is requested often, so it is loaded into the cache", tier.ErrNotDirect)
	}
	bounded, cancel := p.WithTimeout(ctx, p.WaitMax)
	slot, err := p.Direct.Pool.Acquire(bounded)
	cancel()
	if err != nil {
		return fmt.Errorf("%w: %w", tier.ErrDirectFailed, err)
	}
	b.Started = p.Clock.Now()
	image := p.Map.Image(slot.Extent(), uint8(p.Map.Formats.Group(key)))
	sums, quiesced, err := r.ReadDirect(ctx, key, image, b.sums)
	switch {
	case err == nil:
		b.slot, b.lent, b.sums, b.Finished = slot, true, sums, p.Clock.Now()
		return nil
	case quiesced != nil:
		p.Count.Quarantined.Add(1)
		slot.Quarantine(quiesced)
	default:
		slot.Release()
	}
	return err
}

// fetchDirect implements direct reads of Fetch by readDirect. It returns false if the block must be
// read through the cache.
func (p *Pipeline) fetchDirect(ctx context.Context, t tier.Tier, key block.Key, b *DirectBlock) (bool, error) {
	if b == nil {
		return false, nil
	}
	err := p.readDirect(ctx, t, key, b)
	switch {
	case err == nil:
		p.Count.Direct.Add(1)
		return true, nil
	case ctx.Err() != nil:
		return false, err
	case errors.Is(err, tier.ErrDirectFailed):
		p.Count.DirectFailed.Add(1)
		if p.Direct.Require {
			return false, err
		}
		p.Index.FellBack(t, key, err)
		b.Failed = err
	case errors.Is(err, errdefs.ErrNotSupported) && errors.Is(err, tier.ErrNotDirect):
		b.Failed = err
	case errors.Is(err, tier.ErrNotDirect): // the block is missing, or belongs in the cache
	default:
		return false, err
	}
	return false, nil
}

// DirectDump is a block that a dump copies to a slot of device memory, from which a tier stores it.
// Lookups do not find it until then. It implements tier.Fill and tier.Slot.
type DirectDump struct {
	slot mem.PoolSlot
	lent bool
	// Head is the sealed header in Direct.Heads. It has no length if the copy had no checksums.
	Head mem.Extent
	// Quiesced, if not nil, is closed when the tier no longer reads the slot.
	Quiesced <-chan struct{}
}

// ReserveDump acquires a slot for a dump. If wait is set, it waits for up to WaitMax. Otherwise it
// returns ErrBusy if no slot is free.
func (p *Pipeline) ReserveDump(ctx context.Context, wait bool) (*DirectDump, error) {
	if !wait {
		ctx = p.noWait
	}
	bounded, cancel := p.WithTimeout(ctx, p.WaitMax)
	defer cancel()
	slot, err := p.Direct.Dumps.Acquire(bounded)
	if err != nil {
		return nil, err
	}
	return &DirectDump{slot: slot, lent: true}, nil
}

// Index returns the number of the slot in Direct.Dumps.
func (d *DirectDump) Index() uint32 { return d.slot.Index() }

// Extent returns the memory of the slot. The CPU cannot access it.
func (d *DirectDump) Extent() mem.Extent { return d.slot.Extent() }

// Publish returns d.
func (d *DirectDump) Publish() (tier.Slot, error) { return d, nil }

// Abort releases the slot.
func (d *DirectDump) Abort(error) { d.Release() }

// Quarantine releases the slot when quiesced is closed.
func (d *DirectDump) Quarantine(_ error, quiesced <-chan struct{}) {
	if d.lent {
		d.lent = false
		d.slot.Quarantine(quiesced)
	}
}

// Sums returns nil.
func (d *DirectDump) Sums() []uint64 { return nil }

// Corrupt does nothing: no other task can use the slot.
func (d *DirectDump) Corrupt(error) {}

// Release releases the slot once the tier no longer reads it. A second call has no effect.
func (d *DirectDump) Release() {
	if d.Quiesced != nil {
		d.Quarantine(nil, d.Quiesced)
	}
	if d.lent {
		d.lent = false
		d.slot.Release()
	}
}
