package log

import (
	"math/bits"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/block"
)

// place is where a block lies: its bytes at page of a segment, its group's header back pages before.
type place struct {
	segment, page uint32
	back          uint16
}

func (p place) off() int64         { return int64(p.page) * page }
func (p place) header() int64      { return p.off() - int64(p.back)*page }
func (p place) position() position { return position{uint64(p.segment), p.off()} }

// seen is the flag of an entry that this process has written or verified.
const seen uint8 = 1

// entry is a block of the index, in 48 bytes.
type entry struct {
	key block.Key
	place
	group uint8 // page group
	flags uint8
	rank  uint32 // the lower rank is evicted first: see rank.go
}

// hashOf returns the hash of a key for its place in the index. It covers all bytes, as keys that
// are no hashes may be equal in most bytes.
func hashOf(key block.Key) uint64 { return xxh3.Hash(key[:]) }

// table is the index of all blocks. It has a shard for each part of the hash, so that growing one
// is short.
type table struct{ shards [tableShards]shard }

const tableShards = 256

// shard is a table with open addressing and linear probing; what is empty has no segment. Entries are in the order of their homes
// but for a wrap at the end, so that one can be removed by moving back those behind it.
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

// put enters e in the place of old, which it returns, unless keep says that old stays. keep may be nil.
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
	return old, there
}

// move changes the place of a block that is at from.
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
// is not in the index or its rank is as high.
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

// mark adds flags to a block that is at p, and returns those that it had.
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

// unmark takes flags from a block that is at p.
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

// remove takes away the block if drop says so.
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
	s.cut(at)
	return e, true
}

// removeAll takes away the blocks of which drop says so.
func (t *table) removeAll(drop func(entry) bool) (gone []entry) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		for at := 0; at < len(s.slots); {
			if e := s.slots[at]; e.segment != 0 && drop(e) {
				gone = append(gone, e)
				s.cut(at)
				continue // another may have come into its place
			}
			at++
		}
		s.mu.Unlock()
	}
	return gone
}

// cut empties a slot and moves back those that it kept from their homes.
func (s *shard) cut(at int) {
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

// reserve makes an empty table large enough for n blocks. Entries of another table come in the order of their homes, so that in one that
// grows meanwhile all would be at its start.
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
