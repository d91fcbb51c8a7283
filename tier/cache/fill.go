package cache

import (
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
)

// fill implements tier.Fill. It contains the handle that Publish returns, which saves an
// allocation.
type fill struct {
	slot  slotRef
	key   block.Key
	ended bool // guarded by the tier's mu
}

// Index returns the index of the slot.
func (f *fill) Index() uint32 { return f.slot.index }

// Extent returns the slot's bytes.
func (f *fill) Extent() mem.Extent { return f.slot.Extent() }

func (f *fill) errEnded() error {
	return fmt.Errorf("fill slot %d: the filling has ended: %w", f.slot.index, errdefs.ErrClosed)
}

// Publish makes the block Ready and returns it pinned. It wakes the callers that wait for the
// block, and pins the block for each of them. On a closed tier it aborts the fill.
func (f *fill) Publish() (tier.Slot, error) {
	t := f.slot.t
	t.mu.Lock()
	ended := f.ended
	f.ended = true
	t.mu.Unlock()
	if ended { // the slot may belong to another fill
		return nil, f.errEnded()
	}
	shards := f.keepSums()
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.checkOpen(); err != nil {
		t.fail(f.slot.index, err)
		t.freeSlot(f.slot.index)
		return nil, err
	}
	e := &t.entries[f.slot.index]
	e.state, e.shards = tier.Ready, shards
	t.pin(f.slot.index)
	if e.wait != nil {
		// Pin the block for each waiter now. Otherwise it could be evicted before they wake.
		e.pins += e.wait.n
		t.stats.Retained += int64(e.wait.n)
	}
	e.wakeWaiters(f.slot.index, nil)
	t.stats.Blocks++
	t.stats.Puts++
	t.stats.WrittenBytes += t.formats.ImageBytes(e.key)
	t.events.Stored(Name, e.key)
	return &f.slot, nil
}

// keepSums copies the checksums from the image's header to Tier.sums and returns their number. Only
// the filler may access the slot.
func (f *fill) keepSums() uint16 {
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

// Quarantine makes the block Failed with cause. The slot is not used again until quiesced is
// closed. Until then Close returns ErrBusy. A nil channel is never closed.
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
		return // Close checks whether the slot has quiesced
	}
	t.watchers.Go(func() {
		select {
		case <-quiesced:
			t.mu.Lock()
			defer t.mu.Unlock()
			t.unquarantine(slot)
		case <-t.closing:
		}
	})
}

// unquarantine frees a slot that has quiesced. The caller holds mu.
func (t *Tier) unquarantine(slot uint32) {
	delete(t.quarantined, slot)
	t.freeSlot(slot)
}
