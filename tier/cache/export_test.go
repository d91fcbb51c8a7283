package cache

import "github.com/kvlane/kvlane/block"

// Policy is the eviction policy by itself, for tests.
type Policy struct{ *policy }

// NewPolicy returns the policy of n slots.
func NewPolicy(n int, pinned func(uint32) bool) Policy { return Policy{newPolicy(n, pinned)} }

// The steps that the tier takes.
func (p Policy) Admit(slot uint32, key block.Key) { p.admit(slot, key) }
func (p Policy) Use(slot uint32)                  { p.use(slot) }
func (p Policy) Link(slot uint32)                 { p.link(slot) }
func (p Policy) Victim() (uint32, bool)           { return p.victim() }
func (p Policy) Remove(slot uint32)               { p.remove(slot) }

// Candidates counts the slots that are linked.
func (p Policy) Candidates() int { return p.queues[inSmall].len + p.queues[inMain].len }

// Index is the index of slots by itself, for tests.
type Index struct{ *index }

// NewIndex returns the index of slots that have such keys, of which none is in it.
func NewIndex(keys []block.Key) Index {
	entries := make([]entry, len(keys))
	for i := range keys {
		entries[i].key = keys[i]
	}
	x := newIndex(entries)
	return Index{&x}
}

// The steps that the tier takes.
func (x Index) Add(slot uint32)                   { x.add(slot) }
func (x Index) Forget(slot uint32)                { x.remove(slot) }
func (x Index) Find(key block.Key) (uint32, bool) { return x.find(&key) }

// SumsOf returns what the tier keeps of a slot's checksums, whatever holds the slot.
func (t *Tier) SumsOf(slot uint32) []uint64 { return t.sums[int(slot)*t.shards:][:t.shards] }
