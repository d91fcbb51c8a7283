package cache

import (
	"hash/maphash"
	"math/bits"

	"github.com/kvlane/kvlane/block"
)

// index finds the slots of blocks by their keys. A map has the keys too, so that each look-up of a large cache misses the CPU's caches
// three times: for the map's own bits, for the key there, and for the slot's entry. Here a cell is 8 bytes, and the entry is next.
//
// It is a table with open addressing, at most half full: a block's cell is the first free one from that on which its hash says, and no
// cell before it becomes free without the block being moved there.
type index struct {
	seed    maphash.Seed
	entries []entry  // the tier's
	cells   []uint64 // the low half of the hash, above the slot and one; zero where free
	read    int32    // what begin has read, for nothing
}

func newIndex(entries []entry) index {
	return index{seed: maphash.MakeSeed(), entries: entries, cells: make([]uint64, 1<<bits.Len(uint(2*len(entries)-1)))}
}

func (x *index) hash(key *block.Key) uint32 { return uint32(maphash.Bytes(x.seed, key[:])) }

// together is how many look-ups begin at a time: what they read is mostly not in the CPU's caches, which fetch several lines at once.
const together = 16

// begin returns the hashes of keys, at most together of them, and has the CPU fetch what finding them reads first.
func (x *index) begin(keys []block.Key, hashes *[together]uint32) {
	for i := range keys {
		hashes[i] = x.hash(&keys[i])
	}
	for _, h := range hashes[:len(keys)] {
		if c := x.cells[int(h)&(len(x.cells)-1)]; c != 0 {
			x.read += x.entries[uint32(c)-1].retains
		}
	}
}

// seek returns the block's cell; where it is not there, the cell where it would be, which is free.
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

// find returns the block's slot.
func (x *index) find(key *block.Key) (slot uint32, ok bool) { return x.findBy(key, x.hash(key)) }

// findBy is find for whom has the key's hash.
func (x *index) findBy(key *block.Key, h uint32) (slot uint32, ok bool) {
	at, ok := x.seek(key, h)
	return uint32(x.cells[at]) - 1, ok
}

// add names the block in slot, whose entry has its key; it is in no other.
func (x *index) add(slot uint32) {
	key := &x.entries[slot].key
	h := x.hash(key)
	at, _ := x.seek(key, h)
	x.cells[at] = uint64(h)<<32 | uint64(slot+1)
}

// remove forgets the block in slot, whose entry still has its key.
func (x *index) remove(slot uint32) {
	key := &x.entries[slot].key
	gap, ok := x.seek(key, x.hash(key))
	if !ok {
		return
	}
	mask := len(x.cells) - 1
	for at := (gap + 1) & mask; x.cells[at] != 0; at = (at + 1) & mask {
		// What is behind its own first cell, and that is not behind the gap, moves there.
		if first := int(x.cells[at] >> 32); (at-first)&mask >= (at-gap)&mask {
			x.cells[gap], gap = x.cells[at], at
		}
	}
	x.cells[gap] = 0
}
