package tier

import (
	"sync"

	"github.com/kvlane/kvlane/block"
)

// OrderedTier is a Tier that evicts the end of a prompt before its beginning: a block is found only together with all blocks before
// it. A store calls both methods on every tier that has them.
type OrderedTier interface {
	// SetOrder gives the tier the order of the blocks that it will be asked to keep. The store calls it once, when it opens. It notes
	// the place of a block before it calls Reserve, Put or PutMany for it, so these read the place there (Order.Place). The tier may
	// keep it with the block, for eviction and across restarts.
	SetOrder(o *Order)
	// Use reports that consecutive blocks of a prompt, all of one page group, are in use. The store calls it with all blocks that a
	// lease has found, in whatever tier, and with the blocks of a dump before it writes them. at is the place of keys[0]. The tier
	// counts the use for those blocks that it has and passes over the others. Use does no I/O: what needs it happens in the
	// background. keys is not changed, and not kept.
	Use(keys []block.Key, at Place)
}

// Place is where a block stands in its prompt, among the blocks of its page group.
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
	most uint64
	next uint64               // links so far; link i is ring[i % most]
	ring []link               // grows up to most
	at   map[block.Key]uint64 // the link of each block
}

// link is a block in a run of consecutive blocks. The link before it is the block before it, unless it is the first of its run.
type link struct {
	key      block.Key
	position int
	first    bool
}

// NewOrder returns an empty Order that remembers up to that many blocks.
func NewOrder(most int) *Order {
	return &Order{most: uint64(most), at: make(map[block.Key]uint64)}
}

// Place returns the place of a block: the zero Place if it was not noted, or is forgotten.
func (o *Order) Place(key block.Key) Place {
	if o == nil {
		return Place{}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.place(key)
}

// place is Place; the caller holds mu.
func (o *Order) place(key block.Key) Place {
	i, ok := o.at[key]
	if !ok {
		return Place{}
	}
	l := &o.ring[i%o.most]
	p := Place{Position: l.position}
	if !l.first && i > 0 && i-1+o.most >= o.next {
		p.Before = o.ring[(i-1)%o.most].key
	}
	return p
}

// After returns the place of a block that comes after before. If before is the zero key it returns the place of key itself, as far as
// it is known.
func (o *Order) After(before, key block.Key) Place {
	if before == (block.Key{}) {
		return o.Place(key)
	}
	return Place{Before: before, Position: o.Place(before).Position + 1}
}

// Note remembers consecutive blocks of a prompt, all of one page group. at is the place of keys[0]. Blocks whose place is known, with
// as many blocks before them or more, keep it.
func (o *Order) Note(keys []block.Key, at Place) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	before, joined := at.Before, false
	for i, key := range keys {
		if j, ok := o.at[key]; ok && o.ring[j%o.most].position >= at.Position+i {
			joined = false
		} else {
			known := before != block.Key{}
			if known && !joined {
				o.push(link{key: before, first: true})
			}
			o.at[key] = o.push(link{key: key, position: at.Position + i, first: !known})
			joined = true
		}
		before = key
	}
}

// push adds a link in the place of the oldest, and returns its number. The caller holds mu.
func (o *Order) push(l link) uint64 {
	i := o.next
	if o.next++; i < o.most {
		o.ring = append(o.ring, l)
		return i
	}
	old := &o.ring[i%o.most]
	if o.at[old.key] == i-o.most { // else the key has a newer link, or none
		delete(o.at, old.key)
	}
	*old = l
	return i
}
