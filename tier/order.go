package tier

import (
	"encoding/binary"
	"sync"

	"github.com/kvlane/kvlane/block"
)

// OrderedTier is a Tier that evicts the end of a prompt before its beginning. A block is found only
// together with all blocks before it. A store calls SetOrder on every OrderedTier. It calls Use on
// those below the first tier, as they do not see all uses otherwise.
type OrderedTier interface {
	// SetOrder sets the order of the blocks that the store will put into the tier. The store calls
	// it once, when it opens. The store notes the place of a block before it calls Reserve, Put or
	// PutMany for the block. These methods read the place by Order.Place. The tier may store the
	// place with the block, for eviction and across restarts.
	SetOrder(o *Order)
	// Use reports a use of consecutive blocks of a prompt. The store calls it with all blocks that
	// a lease has found, in any tier. It also calls it with the blocks of a dump, of a prefetch,
	// and of a load without a lease, before it moves them. at is the place of keys[0]. The tier
	// counts the use for its blocks and ignores other keys. Use does no I/O; the tier does
	// necessary I/O in the background. Use does not change or keep keys.
	Use(keys []block.Key, at Place)
}

// Place is the place of a block in its prompt. Blocks of several page groups are in one order, that
// of their tokens. So after evictions, each group has the same tokens of a prompt.
type Place struct {
	Before   block.Key // the block before it; zero for the first block, or if it is not known
	Position int       // the number of blocks known to come before it
}

// OrderKeys is the number of blocks that a store's Order remembers. All requests together have
// fewer blocks between lease and dump.
const OrderKeys = 1 << 16

// Order remembers the places of the blocks that were noted last, up to a fixed number. The methods
// are safe for concurrent use. They call no tier, so a tier may call them under its own locks. A
// nil Order knows no block.
type Order struct {
	mu   sync.Mutex
	ring []link            // up to a fixed length; then the oldest link is overwritten
	next int               // the place of the next link
	last int               // index of the block found last; mostly the next link is searched next
	at   map[uint64]uint32 // the places of blocks' newest links, by hash
}

// link is a block in a run of consecutive blocks. The link before it is the block before it, unless
// it is the first of its run.
type link struct {
	key      block.Key
	position int
	first    bool
	ghost    bool // the block before a run; its own place is elsewhere
}

// NewOrder returns an empty Order that remembers up to most blocks.
func NewOrder(most int) *Order {
	return &Order{ring: make([]link, 0, most), at: make(map[uint64]uint32)}
}

// hash returns a short hash of a key. A later key with the same hash displaces it: its place is
// forgotten.
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

// before returns the link before a link of the same run, or nil. The caller holds mu.
func (o *Order) before(i int) *link {
	if o.ring[i].first || i == o.next && len(o.ring) == cap(o.ring) || i == 0 && len(o.ring) < cap(o.ring) {
		return nil
	}
	return &o.ring[(i+len(o.ring)-1)%len(o.ring)]
}

// Place returns the place of a block, or the zero Place if it was not noted or is forgotten.
func (o *Order) Place(key block.Key) Place {
	p, _ := o.Between(key)
	return p
}

// Between returns the place of a block, and the block after it that was noted with it last. next is
// the zero key if none is known.
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

// After returns the place of key, given that its block comes after before. If before is not known
// it is the zero key.
func (o *Order) After(before, key block.Key) Place {
	p := o.Place(key)
	if before != (block.Key{}) {
		p = Place{Before: before, Position: max(p.Position, o.Place(before).Position+1)}
	}
	return p
}

// Note remembers consecutive blocks of a prompt. at is the place of keys[0]. A block keeps a known
// place with the same position or a higher one.
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
