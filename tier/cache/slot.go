package cache

import (
	"context"
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
)

// slotRef implements tier.Slot: one pin. Each is an allocation of its own, since a Release must know whether it is the
// first of this very handle.
type slotRef struct {
	t        *Tier
	index    uint32
	released bool // guarded by the tier's mu
}

// Index returns the slot's number.
func (s *slotRef) Index() uint32 { return s.index }

// Extent returns the slot's bytes, which are the block's until Release.
func (s *slotRef) Extent() mem.Extent { return s.t.slots.At(s.index) }

// Sums returns the checksums of the block's shards as they were when it was published; nil where its header had none of the kind.
func (s *slotRef) Sums() []uint64 {
	n := int(s.t.entries[s.index].shards) // written before the block became Ready
	if n == 0 {
		return nil
	}
	from := int(s.index) * s.t.shards
	return s.t.sums[from : from+n : from+n]
}

// Corrupt drops the block: it answers no hit from now on, and its slot is free once nobody has it open. After Release it
// does nothing.
func (s *slotRef) Corrupt(cause error) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if !s.released {
		s.t.condemn(s.index, cause)
	}
}

// Release unpins the block. It works on a closed tier too.
func (s *slotRef) Release() {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	s.release()
}

// release is Release for whom holds the tier's mu.
func (s *slotRef) release() {
	if !s.released {
		s.released = true
		s.t.unpin(s.index)
	}
}

// flight is what those wait for who want a block that is being filled. The result is written under mu before done is
// closed; then each of them that has not left holds a pin of slot, or none if err is set.
type flight struct {
	done  chan struct{}
	waits int32
	slot  uint32
	err   error
}

// board counts the caller among those that wait for the filling. The caller holds mu.
func (e *entry) board() *flight {
	if e.flight == nil {
		e.flight = &flight{done: make(chan struct{})}
	}
	e.flight.waits++
	return e.flight
}

// land wakes who waits for the filling. The caller holds mu.
func (e *entry) land(slot uint32, err error) {
	f := e.flight
	if f == nil {
		return
	}
	e.flight = nil
	f.slot, f.err = slot, err
	close(f.done)
}

// Open pins a Ready block and returns its slot. It waits while another is filling the block, until ctx ends; ErrNotFound,
// with the cause where it is known, if the block is absent or its filling failed. With a ctx that has ended, it does not wait.
func (t *Tier) Open(ctx context.Context, key block.Key) (tier.Slot, error) {
	// A context that has ended is not refused here: the contract makes it a try without waiting.
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

// tryOpen pins the block or returns the flight to wait for.
func (t *Tier) tryOpen(key block.Key) (uint32, *flight, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.enter(); err != nil {
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
		return 0, e.board(), nil
	}
	t.pin(slot)
	t.used(slot)
	return slot, nil, nil
}

// used counts an Open of slot. The caller holds mu.
func (t *Tier) used(slot uint32) {
	if t.entries[slot].retains == 0 { // else Retain has told the policy
		t.policy.use(slot)
	}
	t.stats.ReadBytes += t.formats.ImageBytes(t.entries[slot].key)
}

func (t *Tier) countOpen(slot uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.used(slot)
}

// await waits for the flight and returns the slot, pinned.
func (t *Tier) await(ctx context.Context, f *flight, key block.Key) (uint32, error) {
	select {
	case <-f.done:
		return f.slot, f.err
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if isClosed(f.done) {
		return f.slot, f.err // it landed just now
	}
	f.waits--
	return 0, fmt.Errorf("open block %s: it is being filled: %w", key, context.Cause(ctx))
}

// OpenReady pins those of keys that are Ready. It allocates once.
func (t *Tier) OpenReady(ctx context.Context, keys []block.Key, slots []tier.Slot, states []tier.State) error {
	if len(slots) != len(states) {
		return fmt.Errorf("open %d blocks into %d slots and %d states: %w", len(keys), len(slots), len(states), errdefs.ErrInvalid)
	}
	refs := make([]slotRef, len(keys))
	if err := t.ask(ctx, keys, len(slots)); err != nil {
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
		t.used(slot)
		t.stats.Hits++
		refs[i] = slotRef{t: t, index: slot}
		slots[i] = &refs[i]
	}
	return nil
}

// ReleaseSlots releases each of slots. What unpinning reads of them is mostly not in the CPU's caches, which fetch several lines at once
// where no lock is taken in between. It panics at a slot of another tier.
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

// LimitRetained bounds the slots that Retain may pin at a time.
func (t *Tier) LimitRetained(slots int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.retainMax = slots
}

// Retain pins blocks up to the first that is not Ready. It does not wait for one that is being
// filled, and allocates nothing. Blocks are evicted in the order that it is given them: the last
// first.
func (t *Tier) Retain(ctx context.Context, keys []block.Key) (int, error) {
	if err := t.ask(ctx, keys, len(keys)); err != nil {
		return 0, err
	}
	defer t.mu.Unlock()
	n := 0
	defer func() { t.stats.Retained += int64(n) }()
	var hashes [together]uint32
	var last uint32
	for ; n < len(keys); n++ {
		if n%together == 0 {
			t.index.begin(keys[n:min(n+together, len(keys))], &hashes)
		}
		slot, ok := t.index.findBy(&keys[n], hashes[n%together])
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

// Release undoes one Retain of each key, on a closed tier too. It panics without one.
func (t *Tier) Release(keys []block.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range keys {
		t.release(&keys[i])
	}
}

// release undoes one Retain. The caller holds mu.
func (t *Tier) release(key *block.Key) {
	// Which of a key's retains is released does not matter for the count. Those of a block found corrupt go first: a
	// new block of that key may so stay pinned for longer than needed, never for less.
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
		t.settle(slot)
	}
}

// pin counts a handle of slot. The caller holds mu.
func (t *Tier) pin(slot uint32) {
	t.entries[slot].pins++
	t.stats.Retained++
	t.policy.pin(slot)
}

// unpin undoes one pin. The caller holds mu.
func (t *Tier) unpin(slot uint32) {
	t.entries[slot].pins--
	t.stats.Retained--
	t.settle(slot)
}

// settle makes a slot whose last pin may have gone evictable, or free if its block was condemned or is not to be kept. The caller
// holds mu.
func (t *Tier) settle(slot uint32) {
	e := &t.entries[slot]
	switch {
	case e.pins > 0 || e.retains > 0:
	case e.state == tier.Failed:
		t.freeSlot(slot)
	case t.passing:
		t.drop(slot)
		t.freeSlot(slot)
	default:
		t.policy.release(slot)
		t.serveLine()
	}
}

// condemn takes the corrupt block in slot, which the caller has pinned, out of the index. The caller holds mu.
func (t *Tier) condemn(slot uint32, cause error) {
	e := &t.entries[slot]
	if e.state != tier.Ready {
		return // condemned already
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
}
