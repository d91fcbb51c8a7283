package cache

import (
	"encoding/binary"

	"github.com/kvlane/kvlane/block"
)

// Parameters of S3-FIFO. The paper uses a small queue of a tenth of the slots and promotes at the
// second use. Blocks of a conversation, however, are used once per turn, after a long time. On
// Mooncake's conversation trace, with slots for a tenth of its blocks, these parameters had 77.0
// thousand hits of 288.5 thousand, the paper's parameters 70.8, and LRU, which a scan can flush,
// 80.3. With slots for a hundredth of the blocks they had 21.6 and LRU 15.1.
const (
	smallShare = 4 // the small queue has about 1/smallShare of the slots
	promoteAt  = 1 // uses in the small queue that promote a block to the main queue
	maxUses    = 3 // maximum of the use counter
)

type queueID uint8

const (
	unlinked queueID = iota
	inSmall
	inMain
	inLast // blocks whose successors are all pinned; evicted if all other queues are empty
)

const noSlot = -1

// node is the policy's state of a slot.
type node struct {
	prev, next  int32  // towards the head (newest) and the tail (oldest)
	parent      int32  // slot of the preceding block of the prompt, valid with parentGen; or noSlot
	parentGen   uint32 // generation of that slot when parent was set
	gen         uint32 // number of blocks that have left this slot
	children    int32  // number of cached blocks that follow it
	idle        int32  // number of children that are evictable
	queue       queueID
	home        queueID // the queue that it returns to: inSmall or inMain
	uses        uint8
	evictable   bool // ready and not pinned
	fingerprint uint64
}

// queue is a linked list of nodes. Slots are pushed at the head and popped at the tail.
type queue struct {
	head, tail int32
	len        int
}

// policy selects the slots to evict. Slots that cannot be evicted yet are unlinked when eviction
// reaches them, so that it does not visit them again: a pinned slot until it is released, and a
// block with an evictable successor until its last evictable successor is gone. The block then
// becomes the next victim, so that a prompt is evicted from its end.
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

// fingerprint shortens a key for the ghost queue. Keys are hashes, so a prefix suffices, and a
// collision is harmless.
func fingerprint(key block.Key) uint64 { return binary.LittleEndian.Uint64(key[:]) }

// admit adds a pinned block in slot. A recently evicted block goes to the main queue.
func (p *policy) admit(slot uint32, key block.Key) {
	n := node{parent: noSlot, gen: p.nodes[slot].gen, fingerprint: fingerprint(key), home: inSmall}
	if p.ghost.forget(n.fingerprint) {
		n.home = inMain
	}
	p.nodes[slot] = n
}

// wasRequested reports whether a block was recently requested or evicted. If not, it records the
// request.
func (p *policy) wasRequested(key block.Key) bool {
	f := fingerprint(key)
	if _, lately := p.ghost.get(f); lately {
		return true
	}
	p.ghost.add(f, struct{}{})
	return false
}

// follow records that the block in slot follows the block in parent. It does nothing if slot
// already has a cached parent.
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

// before returns the node of the block that precedes n's block, or nil if it is unknown or not
// cached.
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

// pin prevents eviction of the slot until release.
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

// relink links an evictable slot without evictable successors as the next victim. Call it when a
// successor was removed or pinned.
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
// unlinks a slot or decrements its uses. A slot is linked again once for each release and for each
// removed successor, so that the amortized cost per block is constant.
func (p *policy) victim() (uint32, bool) {
	for {
		from := p.nextQueue()
		tail := p.queues[from].tail
		if tail == noSlot {
			if p.evictable[inSmall]+p.evictable[inMain] == 0 {
				return 0, false
			}
			// The blocks follow each other in a circle, because the keys of a call were not in the
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

// nextQueue returns the queue from which the next victim is taken.
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

// remove removes the block in slot from the policy.
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
	n.gen++ // invalidates the parent of the block's successors
	n.children, n.idle = 0, 0
}

// push adds slot as the newest of a queue.
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

// pushTail adds slot as the oldest of a queue.
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
