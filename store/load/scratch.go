package load

import (
	"slices"

	"github.com/kvlane/kvlane/store/batch"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/store/task"
	"github.com/kvlane/kvlane/tier"
)

// Limits of one load.
const (
	firstBlocks  = 128 // blocks of the first batch, so that copying starts early
	maxInFlight  = 2   // groups in the stream: one is copied while the next is built
	windowBlocks = 512 // blocks with a slot, if the CPU verifies slots before their copy
	windowReads  = 128 // fetch jobs
)

// scratch is the memory of a load. It is pooled, so that a load allocates nothing per block. Slices
// of int32 hold indices of refs.
type scratch struct {
	task.Refs
	items     []item  // by ref
	todo      []int32 // blocks not yet looked up
	toRead    []int32 // blocks to read from a tier below
	filling   []int32 // blocks that another task fills
	ready     []int32 // blocks whose slots may be copied
	slots     []tier.Slot
	states    []tier.State
	results   chan result // has space for the results of all jobs
	layerLeft []int       // see Task.layerLeft
	buffers   *batch.Buffers
	groups    []*group // free list

	unverified     []pipeline.Unverified  // by ref
	direct         []pipeline.DirectBlock // by ref
	unverifiedSums []uint64
}

// item is the state of one block.
type item struct {
	slot        tier.Slot // pinned, or nil
	cause       error     // an earlier failure of the block, which a retry may repair
	firstLayer  int32     // layerwise: first layer that is not yet on the page and verified
	tier        int8      // the tier that the block was read from, counted from the cache
	tries       uint8     // retries after another task failed to fill the block
	badCopies   uint8     // copies that failed their check
	checked     bool      // the CPU has verified the slot, in the task or in the tier
	corruptTier int8      // tier below with an uncounted corrupt read, or 0
	noLeafSums  bool      // the checksums cannot be compared with sums of a copy
	touched     bool      // the page may have been written
}

// result is the result of a job.
type result struct {
	fetched bool // else verified
	i       int32
	err     error
}

// reserveUnverified allocates memory for blocks that are read without verification.
func (sc *scratch) reserveUnverified(shards int, direct bool) {
	n := len(sc.Refs.Refs)
	if direct {
		sc.direct = slices.Grow(sc.direct[:0], n)[:n]
	}
	sc.unverified = slices.Grow(sc.unverified[:0], n)[:n]
	sc.unverifiedSums = slices.Grow(sc.unverifiedSums[:0], n*shards)[:n*shards]
}

// group is a batch group of a load.
type group struct {
	*batch.Group
	direct      bool // the blocks are in slots of device memory
	nextLayer   int  // layerwise: first layer without a planned part
	headBatches int  // layerwise: number of batches of the first layer
	// wantedSums holds, by page group, the expected checksums by block and shard that were loaded
	// so far.
	wantedSums [][]uint64
}

// release returns g to the free list.
func (sc *scratch) release(g *group) {
	sc.buffers.Release(g.Group)
	for i := range g.wantedSums {
		g.wantedSums[i] = g.wantedSums[i][:0]
	}
	*g = group{wantedSums: g.wantedSums}
	sc.groups = append(sc.groups, g)
}
