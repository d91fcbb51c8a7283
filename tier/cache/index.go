package cache

import (
	"hash/maphash"
	"math/bits"

	"github.com/kvlane/kvlane/block"
)

// index maps keys to slots. In a large cache, a lookup in a Go map with the keys costs three cache
// misses: for the map's control bits, its key, and the slot's entry. Here a cell has 8 bytes and
// the key is in the entry.
//
// It is a hash table with open addressing, at most half full. A block is in the first cell from its
// hash on that was free. A removal moves later blocks back, so that searches find them.
type index struct {
	seed       maphash.Seed
	entries    []entry  // of the tier
	cells      []uint64 // low half of the hash, then slot+1; zero if free
	prefetched int32    // result of the reads in prefetch, so that the compiler keeps them
}

func newIndex(entries []entry) index {
	return index{seed: maphash.MakeSeed(), entries: entries, cells: make([]uint64, 1<<bits.Len(uint(2*len(entries)-1)))}
}

func (x *index) hash(key *block.Key) uint32 { return uint32(maphash.Bytes(x.seed, key[:])) }

// lookupBatch is the number of lookups whose memory is prefetched together, so that the CPU fetches
// several cache lines at once.
const lookupBatch = 16

// prefetch returns the hashes of up to lookupBatch keys. It reads the memory that findBy will
// access first.
func (x *index) prefetch(keys []block.Key, hashes *[lookupBatch]uint32) {
	for i := range keys {
		hashes[i] = x.hash(&keys[i])
	}
	for _, h := range hashes[:len(keys)] {
		if c := x.cells[int(h)&(len(x.cells)-1)]; c != 0 {
			x.prefetched += x.entries[uint32(c)-1].retains
		}
	}
}

// seek returns the cell of a block, or the free cell for it.
func (x *index) seek(key *block.Key, h uint32) (at int, ok bool) {
	for at = int(h) & (len(x.cells) - 1); ; at = (at + 1) & (len(x.cells) - 1) {
		c := x.cells[at]
		if c == 0 {
			return at, false
		}
		if uint32(c>>32) == h && x.entries[uint32(c)-1].key == *key {
			return at, true
		}
	}
}

// find returns the slot of a block.
func (x *index) find(key *block.Key) (slot uint32, ok bool) { return x.findBy(key, x.hash(key)) }

// findBy is find with the hash of the key.
func (x *index) findBy(key *block.Key, h uint32) (slot uint32, ok bool) {
	at, ok := x.seek(key, h)
	return uint32(x.cells[at]) - 1, ok
}

// add adds the block in slot, with the key in its entry. The block must not be in the index.
func (x *index) add(slot uint32) {
	key := &x.entries[slot].key
	h := x.hash(key)
	at, _ := x.seek(key, h)
	x.cells[at] = uint64(h)<<32 | uint64(slot+1)
}

// remove removes the block in slot. The key must still be in its entry.
func (x *index) remove(slot uint32) {
	key := &x.entries[slot].key
	gap, ok := x.seek(key, x.hash(key))
	if !ok {
		return
	}
	mask := len(x.cells) - 1
	for at := (gap + 1) & mask; x.cells[at] != 0; at = (at + 1) & mask {
		// A block may move to the gap unless its preferred cell is after the gap.
		if first := int(x.cells[at] >> 32); (at-first)&mask >= (at-gap)&mask {
			x.cells[gap], gap = x.cells[at], at
		}
	}
	x.cells[gap] = 0
}
