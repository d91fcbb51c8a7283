package batch

import (
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store/pages"
	"github.com/kvlane/kvlane/store/pool"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/renew"
)

// Env is the environment that all groups of a store share in one direction of copies.
type Env struct {
	Map      *pages.Map
	Slots    mem.Slots // of the cache
	Dir      mem.Direction
	Stream   *renew.Stream
	Clock    clockwork.Clock
	Checks   *pool.Pool // runs check jobs
	Checkers int        // goroutines of Checks
}

// Owner is the task that a group belongs to.
type Owner interface {
	// BatchResolved records a batch whose ticket has resolved. err is nil if the batch was copied.
	BatchResolved(c stream.Completion, submittedAt time.Time, err error)
	// Check verifies or seals the blocks of a job and adds the failed ones to it. It is called by a
	// goroutine of Env.Checks.
	Check(job *CheckJob)
}

// Buffers is the reusable memory of one task: its planes and the free lists of its groups and
// batches. The task's goroutine owns it.
type Buffers struct {
	env         *Env
	planes      []mem.Plane // of all layers by page group, in the order of their offsets in a slot
	layerPlanes []Span      // by layer: positions in planes
	freeGroups  []*Group
	freeBatches []*inFlightBatch
	wake        chan struct{} // receives an element when a part may have completed or been checked
}

// Span is the range From to To-1 of positions.
type Span struct{ From, To int }

// Len returns the number of positions.
func (s Span) Len() int { return s.To - s.From }

// Group is a set of blocks that are copied together. The task's goroutine owns it. Check jobs read
// parts and blocks, and decrement Part.pendingJobs.
type Group struct {
	buf   *Buffers
	owner Owner

	Items  [][]int32        // by page group: blocks, as indices of the task's refs
	pairs  [][]mem.PageSlot // by page group: pages and slots of Items
	Blocks int              // number of blocks in all page groups
	Slots  mem.Slots        // Env.Slots, unless the blocks are in other slots

	// Parts are in the order of copying. Each is a separate allocation, because check jobs hold
	// pointers to parts while the slice grows.
	Parts   []*Part
	batches []*inFlightBatch // in the order of submission

	Completed   int   // completed parts
	Resolved    int   // batches whose tickets have resolved
	MissingSums bool  // a completed part has no sums
	Err         error // first failure of a batch, or the cause of cancellation
	frozen      bool  // see Freeze

	sums     []uint64 // checksums computed by the stream: see ReserveSums
	usedSums int      // number of sums that are assigned to parts

	jobs     []*CheckJob
	freeJobs []*CheckJob // free list
	Checked  int         // parts whose check jobs have finished
	Failures []Failure
}

// Part is a unit of completion: some shards of some blocks of one page group. It corresponds to one
// mem.PageGroup of a batch.
type Part struct {
	Group   int  // page group
	Shards  Span // shards of the page group
	Blocks  Span // positions in Group.Items of the page group
	HasSums bool // completed, and its sums are valid

	firstSum       int          // index in Group.sums; order: block, shard, leaf
	leavesPerBlock int          // sums of one block
	pendingJobs    atomic.Int32 // check jobs that have not finished
}

// inFlightBatch is a submitted batch with parts first to end-1 of its group.
type inFlightBatch struct {
	first, end  int
	pageGroups  []mem.PageGroup
	paged       mem.Paged
	batch       mem.Batch
	ticket      *stream.Ticket
	submittedAt time.Time
	// reported is twice the number of completed parts that the stream has reported, plus one if
	// their sums are valid. A goroutine of the stream stores it through notify.
	reported atomic.Int64
	notify   func(parts int, hasSums bool)
}

// Failure is a block that failed in one part.
type Failure struct {
	Item int32
	Part int
	Err  error
}

// CheckJob verifies or seals some blocks of a completed part. A goroutine of Env.Checks owns it
// until the part has no pending jobs. Then the task's goroutine owns it.
type CheckJob struct {
	Group *Group
	Part  *Part
	// ByShard is scratch memory of Group.PartByShard.
	ByShard []*Part

	buf      *Buffers
	index    int // of Part in Group.Parts
	from, to int // positions in the part's blocks
	failures []Failure
}
