package load

import (
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store/admission"
	"github.com/kvlane/kvlane/store/batch"
	"github.com/kvlane/kvlane/store/pages"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/store/read"
)

// errNoSums is the failure of a block in device memory, which the CPU cannot verify.
var errNoSums = fmt.Errorf("the copy from device memory has no checksums: %w", errdefs.ErrNotSupported)

// checkPart verifies the blocks of part n of g, by the sums of the copy if there are any, otherwise
// by jobs that verify the slots.
func (t *Task) checkPart(g *group, n int) {
	switch {
	case g.Parts[n].HasSums && t.copySums:
		t.compareSums(g, n)
	case g.direct: // the CPU cannot verify the slots
		for _, i := range g.ItemsOf(g.Parts[n]) {
			g.AddFailure(i, n, errNoSums)
		}
	case t.copySums || t.p.Verify == pipeline.VerifyAlways:
		g.EnqueueChecks(n)
	}
}

// compareSums compares the sums of part n of g with the checksums of its blocks.
func (t *Task) compareSums(g *group, n int) {
	p := g.Parts[n]
	t.loadChecksums(g, p.Group, p.Blocks.To)
	shards, wanted := len(t.p.Map.Layers[p.Group]), g.wantedSums[p.Group]
	leaves := t.p.Map.Leaves(p.Group, p.Shards.From, p.Shards.To)
	sums, perBlock := g.PartSums(p)
	for k, i := range g.ItemsOf(p) {
		base := (p.Blocks.From + k) * shards
		if !equalSums(sums, leaves, wanted[base+p.Shards.From:base+p.Shards.To]) {
			err := t.checkSums(p, i, func(shard int) uint64 { return block.FoldLeaves(g.LeafSums(p, k, shard)) })
			if err != nil {
				g.AddFailure(i, n, err)
			}
		}
		sums = sums[perBlock:]
	}
}

// equalSums reports whether the leaf sums of some shards yield the wanted checksums.
func equalSums(sums []uint64, leaves []pages.Leaves, wanted []uint64) bool {
	for k, want := range wanted {
		n := leaves[k].Count
		if block.FoldLeaves(sums[:n]) != want {
			return false
		}
		sums = sums[n:]
	}
	return true
}

// loadChecksums copies the checksums of the first end blocks of a page group to g.wantedSums, where
// they are contiguous. Missing checksums are zero, and so are those of blocks that already have a
// result.
func (t *Task) loadChecksums(g *group, pageGroup, end int) {
	shards, wanted := len(t.p.Map.Layers[pageGroup]), g.wantedSums[pageGroup]
	for at := len(wanted); at < end*shards; at += shards {
		wanted = slices.Grow(wanted, shards)[:at+shards]
		n := 0
		if slot := t.sc.Items[g.Items[pageGroup][at/shards]].Slot; slot != nil {
			n = copy(wanted[at:], slot.Sums())
		}
		clear(wanted[at+n:])
	}
	g.wantedSums[pageGroup] = wanted
}

// Check implements batch.Owner: it verifies the shards of a part in the slots of a job.
func (o *owner) Check(job *batch.CheckJob) {
	t := (*Task)(o)
	for _, i := range job.Items() {
		it := &t.sc.Items[i]
		// Under VerifyAlways an earlier check of the slot does not count.
		if it.Checked && t.p.Verify != pipeline.VerifyAlways {
			continue
		}
		image := t.p.Map.Image(it.Slot.Extent(), t.sc.Groups[i]).Bytes()
		format := t.p.Map.Formats[t.sc.Groups[i]]
		if err := t.checkSums(job.Part, i, func(k int) uint64 { return format.SumShard(image, k) }); err != nil {
			job.AddFailure(i, err)
		}
	}
}

// checkSums compares the sums of a part's shards of block i with the checksums in the cache.
func (t *Task) checkSums(p *batch.Part, i int32, sum func(shard int) uint64) error {
	it := &t.sc.Items[i]
	if it.NoLeafSums {
		return nil
	}
	sums := it.Slot.Sums()
	if len(sums) < p.Shards.To {
		return fmt.Errorf("%d checksums for the %d shards of block %s: %w", len(sums), p.Shards.To, t.sc.Keys[i], errdefs.ErrCorrupt)
	}
	for k := p.Shards.From; k < p.Shards.To; k++ {
		if got := sum(k); got != sums[k] {
			return fmt.Errorf("verify block %s: checksum of shard %d is %016x, that of the block %016x: %w",
				t.sc.Keys[i], k, got, sums[k], errdefs.ErrCorrupt)
		}
	}
	return nil
}

// verifiedCount counts loaded blocks by tier, and by whether the copy or the CPU verified them.
type verifiedCount struct {
	blocks        admission.Bytes // numbers of blocks
	byCopy, byCPU int64
}

// add counts a block. hasSums is set if its copies had sums.
func (v *verifiedCount) add(t *Task, it *read.Item, hasSums bool) {
	v.blocks[t.p.Source(it.Tier)]++
	if it.Tier > 0 {
		t.p.Count.Hits[it.Tier].Add(1)
	}
	byCopy := hasSums && t.copySums && !it.NoLeafSums
	if byCopy {
		v.byCopy++
	}
	if p := t.p.Verify; p == pipeline.VerifyAlways || !byCopy && (p != pipeline.VerifyFill || it.Tier != 0) {
		v.byCPU++
	}
}

// addTo adds the counts to those of the task and of the store.
func (v *verifiedCount) addTo(t *Task, imageBytes int64) {
	for s, n := range v.blocks {
		t.bytes[s] += n * imageBytes
	}
	c := &t.p.Count
	c.Hits[0].Add(v.blocks[admission.Memory])
	c.VerifiedByCopy.Add(v.byCopy)
	c.VerifiedByCPU.Add(v.byCPU)
}
