package copy

import "github.com/kvlane/kvlane/mem"

// claims is what the batches of one chunk write. All pieces of a chunk are written at once, in no order, so those of two
// batches that write the same bytes must not be in one: the stream keeps batches in order.
//
// It is a hash table of the granules that were written, each with the span of bytes that lies between the first and the
// last. Where two batches write between each other's pieces of a granule it sees a conflict that there is not; that ends a
// chunk early and does no harm.
type claims struct {
	slots []claim
	round uint32 // of the chunk: a slot of another round is free
	taken int
}

// claim is one granule.
type claim struct {
	granule      uint64
	round, batch uint32
	from, to     uint32 // bytes within
}

const (
	granuleShift = 12
	granuleBytes = 1 << granuleShift
	claimsShift  = 16
	// mostClaims is 128 MiB in whole granules. A table that is full for half finds slots fast.
	mostClaims = 1 << (claimsShift - 1)
	// severalBatches is the batch of a granule that more than one has claimed.
	severalBatches = 0
)

// begin forgets all claims.
func (c *claims) begin() {
	if c.slots == nil {
		c.slots = make([]claim, 1<<claimsShift)
	}
	if c.round++; c.round == 0 { // it has been all the way round
		clear(c.slots)
		c.round = 1
	}
	c.taken = 0
}

// claim notes that a batch, numbered from 1, writes the n bytes at that device address. It returns false if another one may
// do so too, or if there is no room to tell; the chunk must end before them then.
func (c *claims) claim(addr mem.DevAddr, n uint64, batch uint32) bool {
	at := uint64(addr)
	for end := at + n; at < end; {
		next := min((at>>granuleShift+1)<<granuleShift, end)
		if !c.claimGranule(at>>granuleShift, uint32(at%granuleBytes), uint32(next-1)%granuleBytes+1, batch) {
			return false
		}
		at = next
	}
	return true
}

func (c *claims) claimGranule(granule uint64, from, to, batch uint32) bool {
	i := granule * 0x9e3779b97f4a7c15 >> (64 - claimsShift)
	for c.slots[i].round == c.round && c.slots[i].granule != granule {
		i = (i + 1) % uint64(len(c.slots))
	}
	s := &c.slots[i]
	if s.round != c.round {
		if c.taken == mostClaims {
			return false
		}
		c.taken++
		*s = claim{granule: granule, round: c.round, batch: batch, from: from, to: to}
		return true
	}
	if s.batch != batch {
		if from < s.to && s.from < to {
			return false
		}
		s.batch = severalBatches
	}
	s.from, s.to = min(s.from, from), max(s.to, to)
	return true
}
