package cache

import (
	"encoding/binary"

	"github.com/kvlane/kvlane/block"
)

// Parameters of S3-FIFO. The paper has a small queue of a tenth and promotes at the second use. But
// blocks of a conversation come back once a turn, after a long time. On Mooncake's conversation
// trace a quarter and the first use had 77.0 thousand hits of 288.5 with slots for a tenth of its
// blocks. The paper's parameters had 70.8, and LRU, which any scan flushes, 80.3. With slots for a
// hundredth they had 21.6 and LRU 15.1.
const (
	smallShare = 4 // the small queue has about 1/smallShare of the slots
	promoteAt  = 1 // uses in the small queue that promote a block to the main queue
	maxUses    = 3 // uses are counted up to this
)

type queueID uint8

const (
	unlinked queueID = iota
	inSmall
	inMain
	inLast // blocks whose successors are all pinned: evicted if all other queues are empty
)

const noSlot = -1

// node is the policy's state of a slot.
type node struct {
	prev, next  int32  // towards the head (newest) and the tail (oldest)
	parent      int32  // slot of the block before it in its prompt, valid with parentGen; or noSlot
	parentGen   uint32 // generation of that slot when parent was set
	gen         uint32 // number of blocks that left this slot
	children    int32  // cached blocks that come after it
	idle        int32  // evictable ones among children
	queue       queueID
	home        queueID // the queue it returns to: inSmall or inMain
	uses        uint8
	evictable   bool // ready and not pinned
	fingerprint uint64
}

// queue is a linked list of nodes. Slots are pushed at the head and popped at the tail.
type queue struct {
	head, tail int32
	len        int
}

// policy decides which slot to evict. It unlinks two kinds of slots when they come up for eviction,
// so that it never visits them again. A pinned slot is linked again when it is released. A block
// with an evictable successor is linked again, as the next victim, when its last evictable
// successor is gone. So a prompt is evicted from its end.
type policy struct {
	nodes     []node
	queues    [inLast + 1]queue
	evictable [inMain + 1]int // evictable slots by home
	small     int             // target length of the small queue
	ghost     *recent[uint64, struct{}]
}

func newPolicy(n int) *policy {
	p := &policy{nodes: make([]node, n), small: max(1, n/smallShare)}
	p.ghost = newRecent[uint64, struct{}](max(1, n-p.small))
	for q := range p.queues {
		p.queues[q] = queue{head: noSlot, tail: noSlot}
	}
	return p
}

// fingerprint shortens a key for the ghost queue. Keys are hashes already, and a collision is
// harmless.
func fingerprint(key block.Key) uint64 { return binary.LittleEndian.Uint64(key[:]) }

// admit starts a block's life in slot, pinned. A block that was evicted lately goes to the main
// queue.
func (p *policy) admit(slot uint32, key block.Key) {
	n := node{parent: noSlot, gen: p.nodes[slot].gen, fingerprint: fingerprint(key), home: inSmall}
	if p.ghost.forget(n.fingerprint) {
		n.home = inMain
	}
	p.nodes[slot] = n
}

// wants reports whether a block was requested or evicted lately. Otherwise it remembers the
// request.
func (p *policy) wants(key block.Key) bool {
	f := fingerprint(key)
	if _, lately := p.ghost.get(f); lately {
		return true
	}
	p.ghost.add(f, struct{}{})
	return false
}

// follow notes that the block in slot comes after the block in parent. It does nothing if the block
// before it is known and cached, as a block has only one.
func (p *policy) follow(slot, parent uint32) {
	n, before := &p.nodes[slot], &p.nodes[parent]
	if p.before(n) != nil || slot == parent {
		return
	}
	n.parent, n.parentGen = int32(parent), before.gen
	before.children++
	if n.evictable {
		before.idle++
	}
}

// before returns the node of the block before n's, or nil if that is not known or not cached.
func (p *policy) before(n *node) *node {
	if n.parent == noSlot || p.nodes[n.parent].gen != n.parentGen {
		return nil
	}
	return &p.nodes[n.parent]
}

// use counts a use of the block in slot.
func (p *policy) use(slot uint32) {
	if n := &p.nodes[slot]; n.uses < maxUses {
		n.uses++
	}
}

// pin keeps the slot until it is released.
func (p *policy) pin(slot uint32) {
	n := &p.nodes[slot]
	if !n.evictable {
		return
	}
	n.evictable = false
	p.evictable[n.home]--
	if before := p.before(n); before != nil {
		before.idle--
		p.relink(uint32(n.parent))
	}
}

// release makes the slot evictable. An unlinked slot becomes the newest of its queue.
func (p *policy) release(slot uint32) {
	n := &p.nodes[slot]
	if n.evictable {
		return
	}
	n.evictable = true
	p.evictable[n.home]++
	if before := p.before(n); before != nil {
		before.idle++
	}
	if n.queue == inLast {
		p.unlink(slot)
	}
	if n.queue == unlinked {
		p.push(n.home, slot)
	}
}

// relink links a slot that has no evictable successor. Call it when a successor is gone or pinned.
func (p *policy) relink(slot uint32) {
	n := &p.nodes[slot]
	if !n.evictable || n.idle > 0 || n.queue == n.home {
		return
	}
	if n.children == 0 {
		if n.queue == inLast {
			p.unlink(slot)
		}
		p.pushTail(n.home, slot)
	} else if n.queue == unlinked {
		p.push(inLast, slot)
	}
}

// victim unlinks and returns the slot to evict, or false if no slot is evictable. Each iteration
// unlinks a slot or takes one of its uses. A slot is linked again once for each release and for
// each successor that ends. So the cost is constant over the life of a block.
func (p *policy) victim() (uint32, bool) {
	for {
		from := p.nextQueue()
		tail := p.queues[from].tail
		if tail == noSlot {
			if p.evictable[inSmall]+p.evictable[inMain] == 0 {
				return 0, false
			}
			// The blocks come after each other in a circle: the keys of a call were not in the
			// order of a prompt.
			p.forgetOrder()
			continue
		}
		slot := uint32(tail)
		n := &p.nodes[slot]
		p.unlink(slot)
		switch {
		case !n.evictable:
			// Stays unlinked until it is released.
		case from == inSmall && n.uses >= promoteAt:
			p.evictable[inSmall]--
			p.evictable[inMain]++
			n.home, n.uses = inMain, 0
			p.push(inMain, slot)
		case from == inMain && n.uses > 0:
			n.uses--
			p.push(inMain, slot)
		case n.idle > 0:
			// Stays unlinked until relink.
		case n.children > 0 && from != inLast:
			p.push(inLast, slot)
		default:
			if n.home == inSmall {
				p.ghost.add(n.fingerprint, struct{}{})
			}
			p.remove(slot)
			return slot, true
		}
	}
}

// nextQueue returns the queue to evict from next.
func (p *policy) nextQueue() queueID {
	small, others := p.queues[inSmall].len > 0, p.queues[inMain].len > 0
	switch {
	case small && (p.evictable[inSmall] >= p.small || !others):
		return inSmall
	case others:
		return inMain
	}
	return inLast
}

// forgetOrder removes the order of all blocks, and links the evictable ones.
func (p *policy) forgetOrder() {
	for i := range p.nodes {
		n := &p.nodes[i]
		n.parent, n.children, n.idle = noSlot, 0, 0
		if n.evictable && n.queue == unlinked {
			p.push(n.home, uint32(i))
		}
	}
}

// remove ends the life of the block in slot.
func (p *policy) remove(slot uint32) {
	n := &p.nodes[slot]
	if n.queue != unlinked {
		p.unlink(slot)
	}
	if before := p.before(n); before != nil {
		before.children--
		if n.evictable {
			before.idle--
		}
		p.relink(uint32(n.parent))
	}
	n.parent = noSlot
	if n.evictable {
		n.evictable = false
		p.evictable[n.home]--
	}
	n.gen++ // invalidates the parent of its successors
	n.children, n.idle = 0, 0
}

// push links slot as the newest of a queue.
func (p *policy) push(id queueID, slot uint32) {
	q, n := &p.queues[id], &p.nodes[slot]
	n.queue, n.prev, n.next = id, noSlot, q.head
	if q.head == noSlot {
		q.tail = int32(slot)
	} else {
		p.nodes[q.head].prev = int32(slot)
	}
	q.head = int32(slot)
	q.len++
}

// pushTail links slot as the oldest of a queue.
func (p *policy) pushTail(id queueID, slot uint32) {
	q, n := &p.queues[id], &p.nodes[slot]
	n.queue, n.prev, n.next = id, q.tail, noSlot
	if q.tail == noSlot {
		q.head = int32(slot)
	} else {
		p.nodes[q.tail].next = int32(slot)
	}
	q.tail = int32(slot)
	q.len++
}

func (p *policy) unlink(slot uint32) {
	n := &p.nodes[slot]
	q := &p.queues[n.queue]
	if n.prev == noSlot {
		q.head = n.next
	} else {
		p.nodes[n.prev].next = n.next
	}
	if n.next == noSlot {
		q.tail = n.prev
	} else {
		p.nodes[n.next].prev = n.prev
	}
	q.len--
	n.queue = unlinked
}
