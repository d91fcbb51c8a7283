package tier

import (
	"encoding/binary"
	"sync"

	"github.com/kvlane/kvlane/block"
)

// OrderedTier is a Tier that evicts the end of a prompt before its beginning: a block is found only together with all blocks before
// it. A store calls SetOrder on every tier that has it, and Use on those below the first, which do not see all uses otherwise.
type OrderedTier interface {
	// SetOrder gives the tier the order of the blocks that it will be asked to keep. The store calls it once, when it opens. The store notes
	// the place of a block before it calls Reserve, Put or PutMany for it, so these read the place there (Order.Place). The tier may
	// keep it with the block, for eviction and across restarts.
	SetOrder(o *Order)
	// Use reports that consecutive blocks of a prompt are in use. The store calls it with all blocks that a
	// lease has found, in whatever tier, and with the blocks of a dump, of a prefetch, and of a load without a lease, before it
	// moves them. at is the place of keys[0]. The tier counts the use for those blocks that it has and passes over the others. Use does no I/O: what needs it happens in the
	// background. keys is not changed, and not kept.
	Use(keys []block.Key, at Place)
}

// Place is where a block stands in its prompt. Blocks of several page groups are in one order, that of their tokens, so that what is left
// of a prompt has the same tokens in each group.
type Place struct {
	Before   block.Key // the block before it; zero if it is the first, or if that block is not known
	Position int       // how many blocks are known to come before it
}

// OrderKeys is how many blocks an Order remembers in a store: more than all requests have under way between lease and dump.
const OrderKeys = 1 << 16

// Order remembers the places of the blocks that were noted last, up to a fixed number of them. The methods are safe for concurrent
// use and call nothing, so a tier may call them under its own locks. A nil Order knows no block.
type Order struct {
	mu   sync.Mutex
	ring []link            // up to a fixed length; then the oldest link is overwritten
	next int               // the place of the next link
	last int               // where a block was found last: the one that is looked for next mostly follows it
	at   map[uint64]uint32 // the places of blocks' newest links, by hash
}

// link is a block in a run of consecutive blocks. The link before it is the block before it, unless it is the first of its run.
type link struct {
	key      block.Key
	position int
	first    bool
	ghost    bool // it stands for the block before a run, whose own place is elsewhere
}

// NewOrder returns an empty Order that remembers up to that many blocks.
func NewOrder(most int) *Order {
	return &Order{ring: make([]link, 0, most), at: make(map[uint64]uint32)}
}

// hash shortens a key. Other keys of the same hash displace it, which costs the knowledge of a place.
func hash(key *block.Key) uint64 {
	h := uint64(0)
	for i := 0; i < block.KeyBytes; i += 8 {
		h = (h ^ binary.LittleEndian.Uint64(key[i:])) * 0x9e3779b97f4a7c15
	}
	return h
}

// find returns where the newest link of a block is, or -1. The caller holds mu.
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

// Place returns the place of a block: the zero Place if it was not noted, or is forgotten.
func (o *Order) Place(key block.Key) Place {
	p, _ := o.Between(key)
	return p
}

// Between returns the place of a block, and a block that comes after it: the one that was noted with it last. That is the zero key if
// none is known.
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

// After returns the place of key, a block that comes after before. The zero key stands for a block that is not known.
func (o *Order) After(before, key block.Key) Place {
	p := o.Place(key)
	if before != (block.Key{}) {
		p = Place{Before: before, Position: max(p.Position, o.Place(before).Position+1)}
	}
	return p
}

// Note remembers consecutive blocks of a prompt. at is the place of keys[0]. Blocks whose place is known, with as many blocks before them
// or more, keep it.
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

// push adds a link in the place of the oldest. The caller holds mu.
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
