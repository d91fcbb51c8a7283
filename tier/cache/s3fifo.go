package cache

import (
	"encoding/binary"

	"github.com/kvlane/kvlane/block"
)

// The parameters of S3-FIFO. Its paper has a small queue of a tenth and promotes at the second use; but the blocks of a
// conversation come back once a turn, after a long while. On Mooncake's conversation trace a quarter and the first use
// hit 77.0 thousand times in 288.5 with slots for a tenth of its blocks, against 70.8 (and LRU's 80.3, which any scan
// undoes), and 21.6 as the paper's with a hundredth (LRU 15.1).
const (
	smallShare = 4 // the small queue aims at 1/smallShare of the slots
	promoteAt  = 1 // uses in the small queue that earn a place in the main one
	maxUses    = 3 // uses are counted up to this
)

type queueID uint8

const (
	unlinked queueID = iota
	inSmall
	inMain
)

const nobody = -1

// node is a slot's place in the policy.
type node struct {
	prev, next  int32 // towards the head (newest) and the tail (oldest)
	queue       queueID
	uses        uint8
	main        bool // goes to the main queue when linked
	fingerprint uint64
}

// queue is a list through the nodes: pushed at the head, popped at the tail.
type queue struct {
	head, tail int32
	len        int
}

// policy decides which slot to evict. Pinned slots stay where they are until they come up for eviction; they are
// unlinked then, and linked again when they are unpinned, so that neither pinning nor evicting ever walks over them.
type policy struct {
	nodes  []node
	queues [inMain + 1]queue
	small  int // what the small queue aims at
	ghost  *recent[uint64, struct{}]
	pinned func(slot uint32) bool
}

func newPolicy(n int, pinned func(uint32) bool) *policy {
	p := &policy{nodes: make([]node, n), small: max(1, n/smallShare), pinned: pinned}
	p.ghost = newRecent[uint64, struct{}](max(1, n-p.small))
	for q := range p.queues {
		p.queues[q] = queue{head: nobody, tail: nobody}
	}
	return p
}

// fingerprint shortens a key for the ghost queue. Keys are hashes already; that two of them meet does no harm.
func fingerprint(key block.Key) uint64 { return binary.LittleEndian.Uint64(key[:]) }

// admit starts a block's life in slot, unlinked. A block that was evicted lately goes to the main queue.
func (p *policy) admit(slot uint32, key block.Key) {
	fp := fingerprint(key)
	p.nodes[slot] = node{fingerprint: fp, main: p.ghost.forget(fp)}
}

// use counts a use of the block in slot.
func (p *policy) use(slot uint32) {
	if n := &p.nodes[slot]; n.uses < maxUses {
		n.uses++
	}
}

// link makes the unpinned slot a candidate for eviction, as the newest of its queue, unless it is one.
func (p *policy) link(slot uint32) {
	if n := &p.nodes[slot]; n.queue == unlinked {
		if n.main {
			p.push(inMain, slot)
		} else {
			p.push(inSmall, slot)
		}
	}
}

// victim unlinks and returns the slot to evict, or false when no linked slot is unpinned. Every turn of its loop unlinks
// a slot or uses up one of its uses: the cost is constant over the life of a block.
func (p *policy) victim() (uint32, bool) {
	for {
		from := inMain
		if s := p.queues[inSmall].len; s > 0 && (s >= p.small || p.queues[inMain].len == 0) {
			from = inSmall
		}
		tail := p.queues[from].tail
		if tail == nobody {
			return 0, false
		}
		slot := uint32(tail)
		n := &p.nodes[slot]
		p.unlink(slot)
		switch {
		case p.pinned(slot):
			// Stays unlinked until it is unpinned.
		case from == inSmall && n.uses >= promoteAt:
			n.main, n.uses = true, 0
			p.push(inMain, slot)
		case from == inMain && n.uses > 0:
			n.uses--
			p.push(inMain, slot)
		default:
			if from == inSmall {
				p.ghost.add(n.fingerprint, struct{}{})
			}
			return slot, true
		}
	}
}

// remove takes slot out of the policy.
func (p *policy) remove(slot uint32) {
	if p.nodes[slot].queue != unlinked {
		p.unlink(slot)
	}
}

func (p *policy) push(id queueID, slot uint32) {
	q, n := &p.queues[id], &p.nodes[slot]
	n.queue, n.prev, n.next = id, nobody, q.head
	if q.head == nobody {
		q.tail = int32(slot)
	} else {
		p.nodes[q.head].prev = int32(slot)
	}
	q.head = int32(slot)
	q.len++
}

func (p *policy) unlink(slot uint32) {
	n := &p.nodes[slot]
	q := &p.queues[n.queue]
	if n.prev == nobody {
		q.head = n.next
	} else {
		p.nodes[n.prev].next = n.next
	}
	if n.next == nobody {
		q.tail = n.prev
	} else {
		p.nodes[n.next].prev = n.prev
	}
	q.len--
	n.queue = unlinked
}
