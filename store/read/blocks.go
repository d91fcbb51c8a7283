// Package read finds the blocks of a load in the tiers. It opens the slots of cached blocks, reads
// other blocks from the tiers below, verifies slots if copies are not verified, and reads wrong
// blocks again. It also sets the errors of blocks. Only the goroutine of the load uses the blocks,
// except that a job in a pool uses the block that it reads or verifies.
package read

import (
	"slices"

	"github.com/kvlane/kvlane/store/layers"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/store/pool"
	"github.com/kvlane/kvlane/store/task"
	"github.com/kvlane/kvlane/tier"
)

// Limits of one load.
const (
	windowBlocks = 512 // blocks with a slot, if the CPU verifies slots before their copy
	windowReads  = 128 // fetch jobs
)

// Config is the same for all loads of a store.
type Config struct {
	Pipeline  *pipeline.Pipeline
	Readers   *pool.Pool // reads from the tiers below
	Checks    *pool.Pool // verifies slots
	Direction string     // name of the stream of loads
}

// Options are options of one load.
type Options struct {
	Task      *task.Task
	Layers    *layers.Counter // nil unless the load is layerwise
	Leased    bool            // a lease pins the blocks
	CopySums  bool            // the stream computes sums of copies, which verify the blocks
	Promotion Promotion
}

// Promotion selects the blocks that a load with direct storage reads through the cache.
type Promotion uint8

// The values of Promotion. A block that direct storage cannot read always passes through the cache.
const (
	PromoteSecond Promotion = iota // blocks that are requested again soon
	PromoteAll                     // all blocks, as without direct storage
	PromoteNone
)

// Blocks are the blocks of a load. They keep their memory between loads, so that a load allocates
// nothing per block. Slices of int32 hold indices of refs.
type Blocks struct {
	task.Refs
	Items []Item  // by ref
	Todo  []int32 // not yet looked up
	Ready []int32 // the slot may be copied
	// CopiesUnchecked is set if slots of the cache are copied before the CPU has verified them,
	// because the policy trusts them or because their copies are verified.
	CopiesUnchecked bool
	Verifying       int         // verify jobs that have not finished
	Results         chan Result // of jobs, for Handle; has space for all of them

	c              *Config
	o              Options
	readUnverified bool    // tiers below do not verify reads, because copies are verified
	readDirect     bool    // tiers below read into device memory, if they can
	toRead         []int32 // to be read from a tier below
	filling        []int32 // another task fills them
	slots          []tier.Slot
	states         []tier.State

	unverified     []pipeline.Unverified  // by ref
	direct         []pipeline.DirectBlock // by ref
	unverifiedSums []uint64

	open      int  // blocks with a slot, or with a job that may acquire one
	reading   int  // fetch jobs that have not finished
	stopped   bool // see Stop
	notDirect bool // NoteNotDirect has recorded a reason
}

// Item is the state of one block.
type Item struct {
	Slot        tier.Slot // pinned, or nil
	cause       error     // an earlier failure of the block, which a retry may repair
	FirstLayer  int32     // layerwise: first layer that is not yet on the page and verified
	Tier        int8      // the tier that the block was read from, counted from the cache
	tries       uint8     // retries after another task failed to fill the block
	badCopies   uint8     // copies that failed their check
	Checked     bool      // the CPU has verified the slot, in the load or in the tier
	corruptTier int8      // tier below with an uncounted corrupt read, or 0
	NoLeafSums  bool      // the checksums cannot be compared with sums of a copy
	Touched     bool      // the page may have been written
}

// Reserve makes space for n blocks, all of them in Todo.
func (b *Blocks) Reserve(n int) {
	if need := max(windowBlocks, n) + windowReads; cap(b.Results) < need {
		b.Results = make(chan Result, need)
	}
	if cap(b.Items) < n {
		b.Items = make([]Item, n)
	}
	b.Items = b.Items[:n]
	for i := range n {
		b.Todo = append(b.Todo, int32(i))
	}
}

// Begin begins a load. The caller has set the refs.
func (b *Blocks) Begin(c *Config, o Options) {
	b.c, b.o = c, o
	p := c.Pipeline
	verifiedByCopy := o.CopySums && p.Verify == pipeline.VerifyDevice
	b.CopiesUnchecked = p.Verify == pipeline.VerifyFill || verifiedByCopy
	direct := p.Direct != nil && o.Promotion != PromoteAll
	b.readUnverified, b.readDirect = verifiedByCopy && p.Unverified, verifiedByCopy && direct
	n := len(b.Refs.Refs)
	if b.readDirect {
		b.direct = slices.Grow(b.direct[:0], n)[:n]
	} else if direct {
		b.NoteNotDirect(pipeline.ErrNoLeaves)
	}
	if b.readUnverified || b.readDirect {
		b.unverified = slices.Grow(b.unverified[:0], n)[:n]
		sums := n * p.Map.Formats.MaxShards()
		b.unverifiedSums = slices.Grow(b.unverifiedSums[:0], sums)[:sums]
	}
}

// Clear drops the references of a load that has ended, or did not begin.
func (b *Blocks) Clear() {
	clear(b.Items)
	clear(b.unverified)
	clear(b.direct)
	b.Todo, b.toRead, b.filling, b.Ready = b.Todo[:0], b.toRead[:0], b.filling[:0], b.Ready[:0]
	b.o, b.open, b.Verifying, b.reading, b.stopped, b.notDirect = Options{}, 0, 0, 0, false, false
}

// Idle reports whether no block is being read or verified, or is ready.
func (b *Blocks) Idle() bool { return b.Verifying+b.reading == 0 && len(b.Ready) == 0 }

// Release unpins slots of the cache that the caller has taken from their blocks.
func (b *Blocks) Release(slots []tier.Slot) {
	b.c.Pipeline.Cache.ReleaseSlots(slots)
	b.open -= len(slots)
}
