package tier

import (
	"encoding/binary"
	"sync"

	"github.com/kvlane/kvlane/block"
)

// OrderedTier is a Tier that evicts the end of a prompt before its beginning, because a block is
// useful only together with all blocks before it. A store calls SetOrder on every OrderedTier. It
// calls Use on those below the first tier, which do not see all uses otherwise.
type OrderedTier interface {
	// SetOrder sets the order of the blocks that the store will put into the tier. The store calls
	// it once, when it opens. The store records the place of a block before it calls Reserve, Put
	// or PutMany for the block. These methods read the place by Order.Place. The tier may store the
	// place with the block, for eviction and across restarts.
	SetOrder(o *Order)
	// Use reports a use of consecutive blocks of a prompt. The store calls it with all blocks that
	// a lease has found, in any tier. It also calls it with the blocks of a dump, of a prefetch,
	// and of a load without a lease, before it copies them. at is the place of keys[0]. The tier
	// counts the use of its blocks and ignores other keys. Use does no I/O; the tier does necessary
	// I/O in the background. Use does not modify or keep keys.
	Use(keys []block.Key, at Place)
}

// Place is the place of a block in its prompt. Blocks of all page groups are in one order, that of
// their tokens, so that after evictions each group has the same tokens of a prompt.
type Place struct {
	Before   block.Key // the block before it; zero for the first block, or if unknown
	Position int       // number of blocks that are known to precede it
}

// OrderKeys is the number of blocks that a store's Order holds. It exceeds the number of blocks of
// all requests between their lease and dump.
const OrderKeys = 1 << 16

// Order records the places of the most recently noted blocks, up to a fixed number. The methods are
// safe for concurrent use. They call no tier, so a tier may call them under its own locks. A nil
// Order has no blocks.
type Order struct {
	mu   sync.Mutex
	ring []link            // up to a fixed length; then the oldest link is overwritten
	next int               // index of the next link
	last int               // index of the link that was found last; usually the next link is requested next
	at   map[uint64]uint32 // indices of the blocks' newest links, by hash of the key
}

// link is a block in a run of consecutive blocks. The preceding link is the preceding block, unless
// first is set.
type link struct {
	key      block.Key
	position int
	first    bool
	ghost    bool // the block before a run, whose own place is in another link
}

// NewOrder returns an empty Order for up to most blocks.
func NewOrder(most int) *Order {
	return &Order{ring: make([]link, 0, most), at: make(map[uint64]uint32)}
}

// hash returns a short hash of a key. If a later key has the same hash, the place of the first is
// lost.
func hash(key *block.Key) uint64 {
	h := uint64(0)
	for i := 0; i < block.KeyBytes; i += 8 {
		h = (h ^ binary.LittleEndian.Uint64(key[i:])) * 0x9e3779b97f4a7c15
	}
	return h
}

// find returns the index of the newest link of a block, or -1. The caller holds mu.
func (o *Order) find(key *block.Key) int {
	i := o.last + 1
	if i >= len(o.ring) || o.ring[i].ghost || o.ring[i].key != *key {
		at, ok := o.at[hash(key)]
		if i = int(at); !ok || o.ring[i].key != *key {
			return -1
		}
	}
	o.last = i
	return i
}

// before returns the preceding link of the same run, or nil. The caller holds mu.
func (o *Order) before(i int) *link {
	if o.ring[i].first || i == o.next && len(o.ring) == cap(o.ring) || i == 0 && len(o.ring) < cap(o.ring) {
		return nil
	}
	return &o.ring[(i+len(o.ring)-1)%len(o.ring)]
}

// Place returns the place of a block, or the zero Place if the block is not recorded.
func (o *Order) Place(key block.Key) Place {
	p, _ := o.Between(key)
	return p
}

// Between returns the place of a block, and the block that was last noted after it, or the zero key
// if there is none.
func (o *Order) Between(key block.Key) (p Place, next block.Key) {
	if o == nil {
		return p, next
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	i := o.find(&key)
	if i < 0 {
		return p, next
	}
	p.Position = o.ring[i].position
	if l := o.before(i); l != nil {
		p.Before = l.key
	}
	if i++; i == len(o.ring) {
		i = 0
	}
	if i != o.next && i < len(o.ring) && !o.ring[i].first {
		next = o.ring[i].key
	}
	return p, next
}

// After returns the place of key if its block follows before. If before is the zero key, it returns
// the recorded place.
func (o *Order) After(before, key block.Key) Place {
	p := o.Place(key)
	if before != (block.Key{}) {
		p = Place{Before: before, Position: max(p.Position, o.Place(before).Position+1)}
	}
	return p
}

// Note records consecutive blocks of a prompt. at is the place of keys[0]. A block keeps its
// recorded place if that has the same position or a higher one.
func (o *Order) Note(keys []block.Key, at Place) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	before, joined := at.Before, false
	for i := range keys {
		if j := o.find(&keys[i]); j >= 0 && o.ring[j].position >= at.Position+i {
			joined = false
		} else {
			known := before != block.Key{}
			if known && !joined {
				o.push(link{key: before, first: true, ghost: true})
			}
			o.push(link{key: keys[i], position: at.Position + i, first: !known})
			joined = true
		}
		before = keys[i]
	}
}

// push adds a link. It overwrites the oldest link if the ring is full. The caller holds mu.
func (o *Order) push(l link) {
	i := o.next
	if i == len(o.ring) {
		o.ring = append(o.ring, l)
	} else {
		old := &o.ring[i]
		if h := hash(&old.key); !old.ghost && o.at[h] == uint32(i) {
			delete(o.at, h)
		}
		*old = l
	}
	if !l.ghost {
		o.at[hash(&l.key)] = uint32(i)
	}
	if o.next++; o.next == cap(o.ring) {
		o.next = 0
	}
}
