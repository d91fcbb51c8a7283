package pipeline

import (
	"errors"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
)

// Unverified is a block that was read from a tier below without verification. Lookups do not find
// it until Publish. It implements tier.Slot.
type Unverified struct {
	fill tier.Fill
	sums []uint64 // checksums in the header that was read
}

var errUnverified = errors.New("the block was read but not verified")

// Reset prepares u for Fetch. sums is memory for the checksums of all shards.
func (u *Unverified) Reset(sums []uint64) { u.fill, u.sums = nil, sums[:0] }

// Publish makes the verified block visible to lookups.
func (u *Unverified) Publish() (tier.Slot, error) { return Publish(u.fill) }

// Index returns the number of the slot.
func (u *Unverified) Index() uint32 { return u.fill.Index() }

// Extent returns the memory of the slot.
func (u *Unverified) Extent() mem.Extent { return u.fill.Extent() }

// Sums returns the checksums in the header of the block, or nil if they are not block.SumTree.
func (u *Unverified) Sums() []uint64 {
	if len(u.sums) == 0 {
		return nil
	}
	return u.sums
}

// Corrupt aborts the fill. Tasks that wait for it read the block again.
func (u *Unverified) Corrupt(cause error) { u.fill.Abort(cause) }

// Release aborts an open fill. Lookups never return unverified blocks.
func (u *Unverified) Release() { u.fill.Abort(errUnverified) }
