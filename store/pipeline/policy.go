package pipeline

import (
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
)

// VerifyPolicy selects where checksums of blocks are computed and verified. Package store documents
// the faults that each policy detects. A tier verifies blocks when it reads them, except for loads
// under VerifyDevice whose copies are summed.
type VerifyPolicy uint8

// The values of VerifyPolicy.
const (
	// VerifyDevice, the default, computes checksums as part of each copy. The checksums of a dump
	// are those of the bytes read from its pages. A load is verified by the bytes written to its
	// pages. If the path of a copy computes no sums, the CPU sums or verifies the slot after the
	// copy. If the pages or the format do not allow sums, for example because planes are not a
	// multiple of block.LeafBytes, the CPU verifies each slot before its copy.
	VerifyDevice VerifyPolicy = iota
	// VerifyAlways finds all that VerifyDevice finds. In addition the CPU checks every slot that a
	// dump has filled against the bytes read from the pages, and every slot before a load copies
	// it. The copies of a load are verified by their sums, or, if the path computes none, by the
	// slot once more.
	VerifyAlways
	// VerifyFill is VerifyAlways for dumps. Loads trust the blocks in the cache, and their copies
	// are not summed.
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
	return 0, fmt.Errorf("parse verify policy %q: must be device, always or fill: %w", s, errdefs.ErrInvalid)
}
