package store

import (
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// VerifyPolicy says where a block's checksums are made and when they are verified; see the package comment for what each
// policy finds. Blocks that come from a tier below are verified by that tier, but for loads under VerifyDevice whose copies are summed.
type VerifyPolicy uint8

// The verify policies.
const (
	// VerifyDevice has whoever copies a block sum it on the way: a dump's checksums are those of the bytes that were read
	// from its pages, and a load is verified by the bytes that reached its pages. Where the copy was made by a path that
	// takes no sums, the slot is summed and verified by the CPU. Where the pages or the format do not allow it (planes that
	// are not multiples of block.LeafBytes, above all) the CPU verifies each slot before its copy. The default.
	VerifyDevice VerifyPolicy = iota
	// VerifyAlways finds all that VerifyDevice does, and has the CPU check besides: every slot that a dump has filled against
	// what was read from the pages, and every slot before a load copies it, so that no copy of a wrong one is begun. What a
	// load has copied is verified as well, by its sums, or, where the path took none, by the slot once more.
	VerifyAlways
	// VerifyFill is VerifyAlways for dumps; loads trust what lies in the cache, and nobody sums their copies.
	VerifyFill
)

var policyNames = [...]string{"device", "always", "fill"}

// String returns "device", "always" or "fill".
func (p VerifyPolicy) String() string {
	if int(p) < len(policyNames) {
		return policyNames[p]
	}
	return fmt.Sprintf("verify(%d)", uint8(p))
}

// ParseVerify is the inverse of VerifyPolicy.String.
func ParseVerify(s string) (VerifyPolicy, error) {
	for p, name := range policyNames {
		if s == name {
			return VerifyPolicy(p), nil
		}
	}
	return 0, fmt.Errorf("parse verify policy %q: it is none of device, always and fill: %w", s, errdefs.ErrInvalid)
}

// summable says whether streams can be asked for the sums of a task over these planes. Planes cover their shards (see
// Pages.Validate), so where all are whole leaves, those of a shard follow each other in the order of the planes' places.
func (s *Store) summable(planes []mem.Plane) bool {
	if s.leaves == nil {
		return false
	}
	_, ok := (&mem.PageGroup{Planes: planes, Slots: s.slots}).Leaves()
	return ok
}
