package cache

import (
	"context"
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
)

// slotRef implements tier.Slot as one pin. Each Open returns a new one, so that a second Release of
// the same handle has no effect.
type slotRef struct {
	t        *Tier
	index    uint32
	released bool // guarded by the tier's mu
}

// Index returns the index of the slot.
func (s *slotRef) Index() uint32 { return s.index }

// Extent returns the bytes of the slot. They belong to the block until Release.
func (s *slotRef) Extent() mem.Extent { return s.t.slots.At(s.index) }

// Sums returns the checksums of the block's shards at Publish, or nil if its header has no
// checksums of type SumTree.
func (s *slotRef) Sums() []uint64 {
	n := int(s.t.entries[s.index].shards) // written before the block became Ready
	if n == 0 {
		return nil
	}
	from := int(s.index) * s.t.shards
	return s.t.sums[from : from+n : from+n]
}

// Corrupt drops the block. Lookups no longer find it, and its slot becomes free with its last pin.
// After Release, Corrupt has no effect.
func (s *slotRef) Corrupt(cause error) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if !s.released {
		s.t.markCorrupt(s.index, cause)
	}
}

// Release unpins the block. It works on a closed tier too.
func (s *slotRef) Release() {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	s.release()
}

// release implements Release. The caller holds the tier's mu.
func (s *slotRef) release() {
	if !s.released {
		s.released = true
		s.t.unpin(s.index)
	}
}

// fillWait is shared by the callers that wait for a fill. The result is written under mu before
// done is closed. Unless err is set, the slot is then pinned once for each remaining waiter.
type fillWait struct {
	done chan struct{}
	n    int32
	slot uint32
	err  error
}

// addWaiter adds a waiter for the fill. The caller holds mu.
func (e *entry) addWaiter() *fillWait {
	if e.wait == nil {
		e.wait = &fillWait{done: make(chan struct{})}
	}
	e.wait.n++
	return e.wait
}

// wakeWaiters ends the waits for the fill. The caller holds mu.
func (e *entry) wakeWaiters(slot uint32, err error) {
	f := e.wait
	if f == nil {
		return
	}
	e.wait = nil
	f.slot, f.err = slot, err
	close(f.done)
}

// Open pins a Ready block and returns its slot. While another caller fills the block, Open waits
// until ctx ends. It returns ErrNotFound, with the cause if it is known, if the block is absent or
// its fill failed. If ctx has already ended it does not wait.
func (t *Tier) Open(ctx context.Context, key block.Key) (tier.Slot, error) {
	// ctx may have ended already: then this is an attempt without waiting.
	slot, f, err := t.tryOpen(key)
	if err != nil {
		return nil, err
	}
	if f != nil {
		if slot, err = t.await(ctx, f, key); err != nil {
			return nil, err
		}
		t.countOpen(slot)
	}
	return &slotRef{t: t, index: slot}, nil
}

// tryOpen pins the block, or returns a fillWait if the block is being filled.
func (t *Tier) tryOpen(key block.Key) (uint32, *fillWait, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.checkOpen(); err != nil {
		return 0, nil, err
	}
	slot, ok := t.index.find(&key)
	if !ok {
		if cause, failed := t.failed.get(key); failed {
			return 0, nil, failure(key, cause)
		}
		return 0, nil, fmt.Errorf("open block %s: %w", key, errdefs.ErrNotFound)
	}
	e := &t.entries[slot]
	if e.state == tier.Filling {
		return 0, e.addWaiter(), nil
	}
	t.pin(slot)
	t.countUse(slot)
	return slot, nil, nil
}

// countUse counts an Open of slot. The caller holds mu.
func (t *Tier) countUse(slot uint32) {
	if t.entries[slot].retains == 0 { // otherwise Retain has counted the use
		t.policy.use(slot)
	}
	t.stats.ReadBytes += t.formats.ImageBytes(t.entries[slot].key)
}

func (t *Tier) countOpen(slot uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.countUse(slot)
}

// await waits for the fill and returns the pinned slot.
func (t *Tier) await(ctx context.Context, f *fillWait, key block.Key) (uint32, error) {
	select {
	case <-f.done:
		return f.slot, f.err
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if isClosed(f.done) {
		return f.slot, f.err // the fill has just ended
	}
	f.n--
	return 0, fmt.Errorf("open block %s: it is being filled: %w", key, context.Cause(ctx))
}

// OpenReady pins the Ready blocks of keys. It allocates once.
func (t *Tier) OpenReady(ctx context.Context, keys []block.Key, slots []tier.Slot, states []tier.State) error {
	if len(slots) != len(states) {
		return fmt.Errorf("open %d blocks into %d slots and %d states: %w", len(keys), len(slots), len(states), errdefs.ErrInvalid)
	}
	refs := make([]slotRef, len(keys))
	if err := t.beginQuery(ctx, keys, len(slots)); err != nil {
		return err
	}
	defer t.mu.Unlock()
	for i := range keys {
		var slot uint32
		slot, states[i] = t.at(&keys[i])
		if states[i] != tier.Ready {
			slots[i] = nil
			continue
		}
		t.pin(slot)
		t.countUse(slot)
		t.stats.Hits++
		refs[i] = slotRef{t: t, index: slot}
		slots[i] = &refs[i]
	}
	return nil
}

// ReleaseSlots releases slots under one lock, so that the CPU fetches several entries at once. It
// panics if a slot belongs to another tier.
func (t *Tier) ReleaseSlots(slots []tier.Slot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, slot := range slots {
		s, ok := slot.(*slotRef)
		if !ok || s.t != t {
			panic("cache: release of another tier's slot")
		}
		s.release()
	}
}

// LimitRetained bounds the number of slots that Retain pins at a time.
func (t *Tier) LimitRetained(slots int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.retainMax = slots
}

// Retain pins blocks up to the first that is not Ready. It does not wait for a block that is being
// filled, and does not allocate. keys are in the order of a prompt: the last is evicted first.
func (t *Tier) Retain(ctx context.Context, keys []block.Key) (int, error) {
	if err := t.beginQuery(ctx, keys, len(keys)); err != nil {
		return 0, err
	}
	defer t.mu.Unlock()
	n := 0
	defer func() { t.stats.Retained += int64(n) }()
	var hashes [lookupBatch]uint32
	var last uint32
	for ; n < len(keys); n++ {
		if n%lookupBatch == 0 {
			t.index.prefetch(keys[n:min(n+lookupBatch, len(keys))], &hashes)
		}
		slot, ok := t.index.findBy(&keys[n], hashes[n%lookupBatch])
		if !ok || t.entries[slot].state != tier.Ready {
			t.stats.Misses++
			return n, nil
		}
		e := &t.entries[slot]
		if e.retains == 0 {
			if t.retained >= t.retainMax {
				return n, fmt.Errorf("retain block %s: %d slots are retained: %w", e.key, t.retained, errdefs.ErrBusy)
			}
			t.retained++
		}
		e.retains++
		t.policy.pin(slot)
		t.policy.use(slot)
		if n > 0 {
			t.policy.follow(slot, last)
		}
		last = slot
	}
	return n, nil
}

// Release undoes one Retain of each key, on a closed tier too. It panics if a key is not retained.
func (t *Tier) Release(keys []block.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range keys {
		t.release(&keys[i])
	}
}

// release undoes one Retain of key. The caller holds mu.
func (t *Tier) release(key *block.Key) {
	// All retains of a key are equal. Those of a corrupt block are released first, so that a new
	// block with that key may stay pinned for longer than needed, but never for less.
	if len(t.orphans) > 0 {
		if n := t.orphans[*key]; n > 0 {
			if t.orphans[*key] = n - 1; n == 1 {
				delete(t.orphans, *key)
			}
			t.stats.Retained--
			return
		}
	}
	slot, ok := t.index.find(key)
	if !ok || t.entries[slot].retains == 0 {
		panic(fmt.Sprintf("cache: release of block %s, which is not retained", key))
	}
	t.stats.Retained--
	e := &t.entries[slot]
	if e.retains--; e.retains == 0 {
		t.retained--
		t.afterUnpin(slot)
	}
}

// pin adds a handle of slot. The caller holds mu.
func (t *Tier) pin(slot uint32) {
	t.entries[slot].pins++
	t.stats.Retained++
	t.policy.pin(slot)
}

// unpin removes a handle of slot. The caller holds mu.
func (t *Tier) unpin(slot uint32) {
	t.entries[slot].pins--
	t.stats.Retained--
	t.afterUnpin(slot)
}

// afterUnpin makes a slot without pins evictable, or frees it if the block is corrupt or the tier
// is transient. The caller holds mu.
func (t *Tier) afterUnpin(slot uint32) {
	e := &t.entries[slot]
	switch {
	case e.pins > 0 || e.retains > 0:
	case e.state == tier.Failed:
		t.freeSlot(slot)
	case t.transient:
		t.drop(slot)
		t.freeSlot(slot)
	default:
		t.policy.release(slot)
		t.serveWaiters()
	}
}

// markCorrupt removes the corrupt block in slot from the index. The caller holds mu and has pinned
// the slot.
func (t *Tier) markCorrupt(slot uint32, cause error) {
	e := &t.entries[slot]
	if e.state != tier.Ready {
		return // already marked
	}
	t.index.remove(slot)
	t.failed.add(e.key, cause)
	t.policy.remove(slot)
	if e.retains > 0 {
		t.orphans[e.key] += int(e.retains)
		e.retains = 0
		t.retained--
	}
	e.state = tier.Failed
	t.stats.Blocks--
	t.stats.Corrupt++
	t.events.Removed(Name, e.key)
}
