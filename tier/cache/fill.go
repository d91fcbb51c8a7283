package cache

import (
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
)

// fill implements tier.Fill. It carries the handle that Publish returns, so that both are one allocation.
type fill struct {
	slot  slotRef
	ended bool // guarded by the tier's mu
}

// Index returns the slot's number.
func (f *fill) Index() uint32 { return f.slot.index }

// Extent returns the slot's bytes.
func (f *fill) Extent() mem.Extent { return f.slot.Extent() }

func (f *fill) errEnded() error {
	return fmt.Errorf("fill slot %d: the filling has ended: %w", f.slot.index, errdefs.ErrClosed)
}

// Land marks shard as complete. ErrInvalid for a shard that the layout lacks, ErrExists for one that has landed.
func (f *fill) Land(shard int) error {
	t := f.slot.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.ended {
		return f.errEnded()
	}
	if shard < 0 || shard >= t.format.Layout.Shards() {
		return fmt.Errorf("land shard %d of %d: %w", shard, t.format.Layout.Shards(), errdefs.ErrInvalid)
	}
	word, bit := &t.bitmap(f.slot.index)[shard/64], uint64(1)<<(shard%64)
	if *word&bit != 0 {
		return fmt.Errorf("land shard %d: it has landed before: %w", shard, errdefs.ErrExists)
	}
	*word |= bit
	return nil
}

// missing returns the first shard that has not landed, or the number of shards. The caller holds mu.
func (f *fill) missing() int {
	t := f.slot.t
	n := t.format.Layout.Shards()
	bitmap := t.bitmap(f.slot.index)
	for i := range n {
		if bitmap[i/64]&(1<<(i%64)) == 0 {
			return i
		}
	}
	return n
}

// Publish makes the block Ready and returns it pinned; who waits for it gets it pinned too. With a shard missing, or the
// tier closed, it aborts and returns why.
func (f *fill) Publish() (tier.Slot, error) {
	t := f.slot.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.ended {
		return nil, f.errEnded()
	}
	err := t.enter()
	if m, n := f.missing(), t.format.Layout.Shards(); err == nil && m < n {
		err = fmt.Errorf("publish slot %d: shard %d of %d has not landed: %w", f.slot.index, m, n, errdefs.ErrInvalid)
	}
	f.ended = true
	if err != nil {
		t.fail(f.slot.index, err)
		t.freeSlot(f.slot.index)
		return nil, err
	}
	e := &t.entries[f.slot.index]
	e.state = tier.Ready
	t.pin(f.slot.index)
	if e.flight != nil {
		// Pinned on behalf of who waits, lest the block be evicted before they have woken.
		e.pins += e.flight.waits
		t.stats.Retained += int64(e.flight.waits)
	}
	e.land(f.slot.index, nil)
	t.stats.Blocks++
	t.stats.Puts++
	t.stats.WrittenBytes += t.slots.Stride
	return &f.slot, nil
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
