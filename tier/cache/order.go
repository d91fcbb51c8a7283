package cache

import (
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier"
)

// SetOrder gives the tier the order of the blocks to come: a block is not evicted while one that
// comes after it is here and not pinned.
func (t *Tier) SetOrder(o *tier.Order) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.order = o
}

// Use counts a use of those of the blocks that are here, and notes their order.
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

// place links the block that begins in slot to the blocks before and after it that are here: blocks
// may come from below in any order. The caller holds mu.
func (t *Tier) place(slot uint32) {
	if t.order == nil || t.passing {
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
