package cache

import (
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
)

// fill implements tier.Fill. It carries the handle that Publish returns, so that both are one allocation.
type fill struct {
	slot  slotRef
	key   block.Key
	ended bool // guarded by the tier's mu
}

// Index returns the slot's number.
func (f *fill) Index() uint32 { return f.slot.index }

// Extent returns the slot's bytes.
func (f *fill) Extent() mem.Extent { return f.slot.Extent() }

func (f *fill) errEnded() error {
	return fmt.Errorf("fill slot %d: the filling has ended: %w", f.slot.index, errdefs.ErrClosed)
}

// Publish makes the block Ready and returns it pinned; who waits for it gets it pinned too. On a closed tier it aborts.
func (f *fill) Publish() (tier.Slot, error) {
	t := f.slot.t
	t.mu.Lock()
	ended := f.ended
	f.ended = true
	t.mu.Unlock()
	if ended { // the slot may be another fill's
		return nil, f.errEnded()
	}
	shards := f.noteSums()
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.enter(); err != nil {
		t.fail(f.slot.index, err)
		t.freeSlot(f.slot.index)
		return nil, err
	}
	e := &t.entries[f.slot.index]
	e.state, e.shards = tier.Ready, shards
	t.pin(f.slot.index)
	if e.flight != nil {
		// Pinned on behalf of who waits, lest the block be evicted before they have woken.
		e.pins += e.flight.waits
		t.stats.Retained += int64(e.flight.waits)
	}
	e.land(f.slot.index, nil)
	t.stats.Blocks++
	t.stats.Puts++
	t.stats.WrittenBytes += t.formats.ImageBytes(e.key)
	return &f.slot, nil
}

// noteSums keeps the checksums that the image's header has, and returns how many. The slot is its filler's alone.
func (f *fill) noteSums() uint16 {
	t := f.slot.t
	if t.slots.Region == nil {
		return 0
	}
	format, err := t.formats.Of(f.key)
	image := f.Extent().Bytes()
	if err != nil || int64(len(image)) < format.Layout.ImageBytes() {
		return 0
	}
	from := int(f.slot.index) * t.shards
	sums := format.ShardSums(t.sums[from:from:from+t.shards], image[:format.Layout.ImageBytes()], f.key)
	return uint16(len(sums))
}

// Abort makes the block Failed with cause and frees the slot.
func (f *fill) Abort(cause error) {
	t := f.slot.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.ended {
		return
	}
	f.ended = true
	t.fail(f.slot.index, cause)
	t.freeSlot(f.slot.index)
}

// Quarantine makes the block Failed with cause. The slot is not used again before quiesced is closed; until then Close
// reports it. A nil channel is never closed.
func (f *fill) Quarantine(cause error, quiesced <-chan struct{}) {
	t := f.slot.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.ended {
		return
	}
	f.ended = true
	slot := f.slot.index
	t.fail(slot, cause)
	t.quarantined[slot] = quiesced
	if t.closed {
		return // nobody waits for the slot; Close looks whether it has quiesced
	}
	t.owned.Go(func() {
		select {
		case <-quiesced:
			t.mu.Lock()
			defer t.mu.Unlock()
			t.unquarantine(slot)
		case <-t.closing:
		}
	})
}

// unquarantine gives a slot that has quiesced back. The caller holds mu.
func (t *Tier) unquarantine(slot uint32) {
	delete(t.quarantined, slot)
	t.freeSlot(slot)
}
