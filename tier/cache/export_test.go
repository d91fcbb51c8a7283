package cache

import "github.com/kvlane/kvlane/block"

// Policy is the eviction policy without a tier.
type Policy struct{ *policy }

// NewPolicy returns the policy for n slots.
func NewPolicy(n int) Policy { return Policy{newPolicy(n)} }

// The steps that the tier makes.
func (p Policy) Admit(slot uint32, key block.Key) { p.admit(slot, key) }
func (p Policy) Use(slot uint32)                  { p.use(slot) }
func (p Policy) Follow(slot, parent uint32)       { p.follow(slot, parent) }
func (p Policy) Pin(slot uint32)                  { p.pin(slot) }
func (p Policy) Release(slot uint32)              { p.release(slot) }
func (p Policy) Victim() (uint32, bool)           { return p.victim() }
func (p Policy) Remove(slot uint32)               { p.remove(slot) }

// Candidates counts the slots that may be evicted.
func (p Policy) Candidates() int { return p.evictable[inSmall] + p.evictable[inMain] }

// Index is the index of slots without a tier.
type Index struct{ *index }

// NewIndex returns an empty index for slots with the given keys.
func NewIndex(keys []block.Key) Index {
	entries := make([]entry, len(keys))
	for i := range keys {
		entries[i].key = keys[i]
	}
	x := newIndex(entries)
	return Index{&x}
}

// The steps that the tier makes.
func (x Index) Add(slot uint32)                   { x.add(slot) }
func (x Index) Forget(slot uint32)                { x.remove(slot) }
func (x Index) Find(key block.Key) (uint32, bool) { return x.find(&key) }

// SumsOf returns the recorded checksums of a slot in any state.
func (t *Tier) SumsOf(slot uint32) []uint64 { return t.sums[int(slot)*t.shards:][:t.shards] }
