package store

import (
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// VerifyPolicy says where a block's checksums are made and when they are verified; see the package comment for what each
// policy finds. Blocks that come from a tier below are verified by that tier whatever the policy.
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

// leafOffsets returns the leaves of a block before each shard, and before its end. It is nil where checksums are not made of
// leaves.
func leafOffsets(f block.Format) []int {
	if f.Algo() != block.SumTree {
		return nil
	}
	at := make([]int, f.Layout.Shards()+1)
	for i := range f.Layout.Shards() {
		at[i+1] = at[i] + f.Layout.LeavesOf(i)
	}
	return at
}

// summable says whether streams can be asked for the sums of a task over these planes. Planes cover their shards (see
// Pages.Validate), so where all are whole leaves, those of a shard follow each other in the order of the planes' places.
func (s *Store) summable(planes []mem.Plane) bool {
	if s.leafAt == nil {
		return false
	}
	_, ok := (&mem.PageGroup{Planes: planes, Slots: s.slots}).Leaves()
	return ok
}

// askSums makes room for the sums of every leaf of g's blocks, from the group's first shard on.
func (g *group) askSums(leafAt []int) {
	g.leafAt = leafAt
	n := len(g.refs) * (leafAt[len(leafAt)-1] - leafAt[g.first])
	if cap(g.sums) < n {
		g.sums = make([]uint64, n)
	}
	g.sums = g.sums[:n]
}

// sumsOf returns the part of g's sums that a batch of this shard fills, or of all shards where shard is negative; nil where
// none were asked for.
func (g *group) sumsOf(shard int) []uint64 {
	switch {
	case g.leafAt == nil:
		return nil
	case shard < 0:
		return g.sums
	}
	from, to := g.leafAt[shard]-g.leafAt[g.first], g.leafAt[shard+1]-g.leafAt[g.first]
	return g.sums[len(g.refs)*from : len(g.refs)*to]
}

// leaves returns the sums of the leaves of a shard of g's block j.
func (g *group) leaves(j, shard int) []uint64 {
	from, n := g.leafAt[shard]-g.leafAt[g.first], g.leafAt[shard+1]-g.leafAt[shard]
	if g.layers {
		return g.sums[len(g.refs)*from+j*n:][:n] // shard, block, leaf: a batch a shard
	}
	return g.sums[j*len(g.sums)/len(g.refs)+from:][:n] // block, shard, leaf
}

// hasSums says whether the batch that copied the shard has filled its sums.
func (g *group) hasSums(shard int) bool {
	if g.layers {
		return g.summed[shard-g.first]
	}
	return g.summed[0]
}
