package cache

import (
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier"
)

// SetOrder sets the order of blocks. A block is not evicted while a cached block after it is not
// pinned.
func (t *Tier) SetOrder(o *tier.Order) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.order = o
}

// Use counts a use of the cached blocks in keys, and records their order.
func (t *Tier) Use(keys []block.Key, _ tier.Place) {
	t.mu.Lock()
	defer t.mu.Unlock()
	last, known := uint32(0), false
	for i := range keys {
		slot, ok := t.index.find(&keys[i])
		if ok {
			t.policy.use(slot)
			if known {
				t.policy.follow(slot, last)
			}
		}
		last, known = slot, ok
	}
}

// place links the block in slot to the cached blocks before and after it. Blocks may arrive from
// other tiers in any order. The caller holds mu.
func (t *Tier) place(slot uint32) {
	if t.order == nil || t.transient {
		return
	}
	key := t.entries[slot].key
	at, next := t.order.Between(key)
	if at.Before != (block.Key{}) {
		if at, ok := t.index.find(&at.Before); ok {
			t.policy.follow(slot, at)
		}
	}
	if next != (block.Key{}) {
		if at, ok := t.index.find(&next); ok {
			t.policy.follow(at, slot)
		}
	}
}
