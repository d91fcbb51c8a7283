package dump

import (
	"github.com/kvlane/kvlane/store/batch"
	"github.com/kvlane/kvlane/store/task"
	"github.com/kvlane/kvlane/tier"
)

// scratch is the memory of a dump. It is pooled, so that a dump allocates nothing per block. Slices
// of int32 hold indices of refs.
type scratch struct {
	task.Refs
	items   []item  // by ref
	todo    []int32 // blocks to copy
	filling []int32 // blocks that another task fills
	kept    []bool  // by ref: one tier has the block
	durable []bool  // by ref: all tiers have it
	sorted  []int   // shards of submissions in ascending order
	buffers *batch.Buffers
}

// item is the state of one block.
type item struct {
	slot    tier.Slot // sealed and pinned, or nil
	fill    tier.Fill // open, or nil
	tries   uint8     // retries after another task failed to fill the block
	skipped bool      // stored without a copy by this dump
}

// group is a batch group of a dump.
type group struct {
	*batch.Group
	// layerwise is set if the parts hold some shards of all blocks. The blocks are sealed after all
	// parts have completed: see sealLayers, which clears it.
	layerwise bool
	// quiesced is set if the dump was canceled and the fills of unsealed blocks are in quarantine.
	// It is closed when their slots are no longer accessed.
	quiesced chan struct{}
}

// finished reports whether no part of g is being copied or sealed.
func (g *group) finished() bool { return g.AllResolved() && g.Checked == g.Completed }

// sealLayers returns the parts by which the blocks of a layerwise group are sealed, once all shards
// have completed. It returns none before that, or if the group has failed, or if cause, the reason
// of a cancellation, is not nil.
func (g *group) sealLayers(cause error) batch.Span {
	g.SkipChecks()
	if !g.AllResolved() {
		return batch.Span{}
	}
	if g.Fail(cause); g.Err != nil {
		return batch.Span{}
	}
	g.layerwise = false
	return g.AddSealParts()
}

// unsealed yields the blocks that are not being sealed: those of parts that have not completed, or
// all blocks of a layerwise group.
func (g *group) unsealed(yield func(i int32) bool) {
	if g.layerwise || g.Completed == 0 { // also if no part is planned
		g.All(yield)
		return
	}
	for _, p := range g.Parts[g.Completed:] {
		for _, i := range g.ItemsOf(p) {
			if !yield(i) {
				return
			}
		}
	}
}
