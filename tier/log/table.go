package log

import (
	"math/bits"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier"
)

// place locates a block: its page in a segment, and the number of pages back to its group's header.
type place struct {
	segment, page uint32
	back          uint16
}

func (p place) off() int64         { return int64(p.page) * page }
func (p place) header() int64      { return p.off() - int64(p.back)*page }
func (p place) position() position { return position{uint64(p.segment), p.off()} }

// seen is set in entries that this process has written or verified.
const seen uint8 = 1

// entry is a block in the index. It has 48 bytes.
type entry struct {
	key block.Key
	place
	group uint8 // page group
	flags uint8
	rank  uint32 // blocks with a lower rank are evicted first: see rank.go
}

// hashOf returns the hash of a key. It covers all bytes, because keys need not be hashes and may be
// equal in most bytes.
func hashOf(key block.Key) uint64 { return xxh3.Hash(key[:]) }

// table is the index of all blocks. It has many shards, so that growing one of them is fast.
type table struct {
	shards [tableShards]shard
	events *tier.Events // receives changes, with the lock of the shard held; may be nil
}

const tableShards = 256

// shard is a hash table with open addressing and linear probing. An empty slot has segment 0.
// Entries are sorted by their homes, except at the wrap, so that removal can move later entries
// back.
type shard struct {
	mu    sync.RWMutex
	slots []entry
	used  int
}

func (t *table) shard(hash uint64) *shard { return &t.shards[hash%tableShards] }

// home returns the slot at which the search for a key begins.
func (s *shard) home(hash uint64) int {
	hi, _ := bits.Mul64(hash, uint64(len(s.slots)))
	return int(hi)
}

// find returns the slot of a key, or the empty slot for it. The table is never full.
func (s *shard) find(hash uint64, key block.Key) (at int, there bool) {
	for at = s.home(hash); ; {
		e := &s.slots[at]
		if e.segment == 0 {
			return at, false
		}
		if e.key == key {
			return at, true
		}
		if at++; at == len(s.slots) {
			at = 0
		}
	}
}

func (t *table) get(key block.Key) (entry, bool) {
	hash := hashOf(key)
	s := t.shard(hash)
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.used == 0 {
		return entry{}, false
	}
	at, there := s.find(hash, key)
	return s.slots[at], there
}

// put stores e and returns the previous entry of its key. If keep is not nil and returns true for
// the previous entry, put leaves it in place.
func (t *table) put(e entry, keep func(old entry) bool) (old entry, had bool) {
	hash := hashOf(e.key)
	s := t.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used >= len(s.slots)*7/8 {
		s.grow()
	}
	at, there := s.find(hash, e.key)
	if there {
		old = s.slots[at]
		if keep != nil && keep(old) {
			return old, true
		}
	} else {
		s.used++
	}
	s.slots[at] = e
	t.events.Stored(Name, e.key)
	return old, there
}

// move changes the place of a block to to, if it is from.
func (t *table) move(key block.Key, from, to place, flags uint8) (was entry, ok bool) {
	hash := hashOf(key)
	s := t.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	at, there := 0, false
	if s.used > 0 {
		at, there = s.find(hash, key)
	}
	if !there || s.slots[at].place != from {
		return entry{}, false
	}
	was = s.slots[at]
	s.slots[at].place, s.slots[at].flags = to, flags
	return was, true
}

// raise sets a higher rank of a block and returns its previous entry. It returns false if the block
// is not in the index or already has that rank or a higher one.
func (t *table) raise(key block.Key, rank uint32) (was entry, ok bool) {
	hash := hashOf(key)
	s := t.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used == 0 {
		return entry{}, false
	}
	at, there := s.find(hash, key)
	if !there || int32(rank-s.slots[at].rank) <= 0 {
		return entry{}, false
	}
	was = s.slots[at]
	s.slots[at].rank = rank
	return was, true
}

// mark sets flags of the block at p, and returns its previous flags.
func (t *table) mark(key block.Key, p place, flags uint8) (had uint8, ok bool) {
	hash := hashOf(key)
	s := t.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used == 0 {
		return 0, false
	}
	at, there := s.find(hash, key)
	if !there || s.slots[at].place != p {
		return 0, false
	}
	had = s.slots[at].flags
	s.slots[at].flags |= flags
	return had, true
}

// unmark clears flags of the block at p.
func (t *table) unmark(key block.Key, p place, flags uint8) {
	hash := hashOf(key)
	s := t.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used == 0 {
		return
	}
	if at, there := s.find(hash, key); there && s.slots[at].place == p {
		s.slots[at].flags &^= flags
	}
}

// remove removes the block if drop returns true for it.
func (t *table) remove(key block.Key, drop func(entry) bool) (entry, bool) {
	hash := hashOf(key)
	s := t.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used == 0 {
		return entry{}, false
	}
	at, there := s.find(hash, key)
	if !there || !drop(s.slots[at]) {
		return entry{}, false
	}
	e := s.slots[at]
	s.removeSlot(at)
	t.events.Removed(Name, key)
	return e, true
}

// removeAll removes the blocks for which drop returns true.
func (t *table) removeAll(drop func(entry) bool) (gone []entry) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		for at := 0; at < len(s.slots); {
			if e := s.slots[at]; e.segment != 0 && drop(e) {
				gone = append(gone, e)
				s.removeSlot(at)
				t.events.Removed(Name, e.key)
				continue // the slot may now hold a moved entry
			}
			at++
		}
		s.mu.Unlock()
	}
	return gone
}

// removeSlot empties a slot and moves later entries back into it.
func (s *shard) removeSlot(at int) {
	n := len(s.slots)
	s.used--
	for next := at; ; {
		if next++; next == n {
			next = 0
		}
		e := s.slots[next]
		if e.segment == 0 {
			break
		}
		// e may move to at unless its home lies between the two.
		if home := s.home(hashOf(e.key)); (next-home+n)%n < (next-at+n)%n {
			continue
		}
		s.slots[at] = e
		at = next
	}
	s.slots[at] = entry{}
}

func (s *shard) grow() { s.resize(max(16, len(s.slots)+len(s.slots)/4)) }

func (s *shard) resize(slots int) {
	old := s.slots
	s.slots = make([]entry, slots)
	for _, e := range old {
		if e.segment != 0 {
			at, _ := s.find(hashOf(e.key), e.key)
			s.slots[at] = e
		}
	}
}

// reserve sizes an empty table for n blocks. Otherwise entries that are copied from another table,
// in the order of their homes, would all be at the start of a growing table.
func (t *table) reserve(n int64) {
	for i := range t.shards {
		t.shards[i].resize(max(16, int(n/tableShards*4/3)))
	}
}

// copyShard appends the entries of one shard.
func (t *table) copyShard(i int, to []entry) []entry {
	s := &t.shards[i]
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, e := range s.slots {
		if e.segment != 0 {
			to = append(to, e)
		}
	}
	return to
}
