package load

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store/admission"
	"github.com/kvlane/kvlane/store/batch"
	"github.com/kvlane/kvlane/store/index"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/store/pool"
	"github.com/kvlane/kvlane/store/task"
	"github.com/kvlane/kvlane/stream"
)

// Config configures a Loader.
type Config struct {
	Pipeline  *pipeline.Pipeline
	Scheduler *task.Scheduler
	Env       *batch.Env // of copies to pages
	Readers   *pool.Pool // reads from the tiers below
	Admission *admission.Model
	// These values are those of store.Config.
	BatchBytes, PartBytes, RowBytes int64
}

// Loader starts loads. It is safe for concurrent use.
type Loader struct {
	Config
	batchBlocks int // maximum number of blocks of a batch
	pieceBlocks int // minimum number of blocks of a piece of the first layer: see Task.copyHead
	scratch     sync.Pool
}

// HeadParts and WholeParts are sizes of copies as multiples of Config.PartBytes. A piece of the
// first layer has HeadParts: with smaller pieces, the waits of batches for multiprocessors cost
// more time than is gained. A part of a load that is not layerwise has WholeParts.
const (
	HeadParts  = 4
	WholeParts = 4
)

// Options are options of a load.
type Options struct {
	// Layerwise copies the shards in order, so that WaitShard(0) returns while later shards are
	// still being copied. The shards of a load are the layers of the model, over all page groups; a
	// block has those of its group. Some shards complete together: see store.Config.PartBytes and
	// RowBytes.
	Layerwise bool
	// After lists dependencies that must resolve before the pages are written, such as work of a
	// stream that still uses them. The host waits for them, also for a stream.Recorded, because a
	// wait on the device would delay all later batches of the load stream. Only Cancel and the
	// store's Close end the wait. The waiting load holds no slots except those of its lease. If a
	// dependency fails, the load fails and its pages are unchanged.
	After []mem.Dependency
	// Before is the key of the block before the first ref's in the prompt, or zero. With a lease it
	// may be omitted. Its only effect is that tiers evict the end of a prompt before its beginning.
	Before block.Key
	// Progress, if not nil, receives completed shards and the end of the load.
	Progress Progress
	// Promotion selects the blocks of tiers below that enter the cache. Other blocks are read
	// directly.
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

// Task is a running load. Waiting for it is optional. All methods are safe for concurrent use.
type Task struct {
	base *task.Task
	l    *Loader
	p    *pipeline.Pipeline

	lease      *index.Lease
	after      []mem.Dependency // nil after they have resolved
	layerwise  bool
	copySums   bool // the stream computes sums of copies, which verify the blocks
	unverified bool // tiers below do not verify reads, because copies are verified
	direct     bool // tiers below read into device memory, if they can
	promotion  Promotion
	progress   progress

	layersDone pool.Watermark // layerwise: number of first layers that no block waits for

	// The fields below are owned by the task's goroutine.
	sc          *scratch
	startedAt   time.Time
	elapsed     time.Duration // set before Done is closed
	cacheBytes  int64         // loaded from the cache
	lowerBytes  int64         // loaded from the tiers below
	layerLeft   []int         // layerwise: by layer, number of blocks that wait for it
	open        int           // number of blocks with a slot, or with a job that may acquire one
	verifying   int           // verify jobs that have not finished
	reading     int           // fetch jobs that have not finished
	groups      []*group      // being copied or checked
	inFlight    int           // groups being copied
	stopped     bool          // see stop
	notDirect   bool          // noteNotDirect has reported a reason
	groupsArray [2]*group
}

// countLayers counts the blocks that wait for each layer.
func (t *Task) countLayers() {
	m := t.p.Map
	t.sc.layerLeft = slices.Grow(t.sc.layerLeft[:0], m.NumLayers())[:m.NumLayers()]
	t.layerLeft = t.sc.layerLeft
	var blocks [block.MaxGroups]int
	for _, g := range t.sc.Groups {
		blocks[g]++
	}
	for k := range t.layerLeft {
		t.layerLeft[k] = blocks[m.Shard(k).Group]
	}
	t.reportLayers()
}

// reportLayers reports the layers that no block waits for any longer.
func (t *Task) reportLayers() {
	n := t.layersDone.Value()
	for n < len(t.layerLeft) && t.layerLeft[n] == 0 {
		n++
	}
	if t.layersDone.Advance(n) {
		t.progress.advance(n)
	}
}

// completeLayer records that n blocks no longer wait for a layer.
func (t *Task) completeLayer(layer, n int) {
	if t.layerLeft[layer] -= n; t.layerLeft[layer] == 0 {
		t.reportLayers()
	}
}

// Done returns a channel that is closed when the load has ended: every block has a result, and the
// task's pages and slots are no longer accessed.
func (t *Task) Done() <-chan struct{} { return t.base.Done() }

// Elapsed returns the duration of the load, without its wait for Options.After. It returns zero
// before Done is closed.
func (t *Task) Elapsed() time.Duration {
	select {
	case <-t.Done():
		return t.elapsed
	default:
		return 0
	}
}

// Cancel cancels the load. It does not wait: the load ends when the hardware has stopped, and
// unfinished blocks fail with ErrCanceled.
func (t *Task) Cancel() { t.base.Cancel() }

// Errs returns one error for each block, a *BlockError, or nil if the block succeeded. Before Done
// is closed it returns a nil slice.
func (t *Task) Errs() []error { return t.base.Errs() }

// Paths returns the completions of the batches that have resolved so far, in order of resolution.
func (t *Task) Paths() []stream.Completion { return t.base.Completions() }

// Wait waits until the load has ended and returns the errors of its blocks, joined. If ctx ends
// first, it returns the cause of ctx.
func (t *Task) Wait(ctx context.Context) error { return t.base.Wait(ctx, t.base.Done()) }

// WaitShard waits until every block has this shard and all earlier ones verified on its page, or
// has failed. It returns the errors of the blocks that have failed so far. Later copies do not
// write these shards again. Without Options.Layerwise it is Wait.
func (t *Task) WaitShard(ctx context.Context, shard int) error {
	if shard < 0 || shard >= t.p.Map.NumLayers() {
		return fmt.Errorf("wait for shard %d of %d: %w", shard, t.p.Map.NumLayers(), errdefs.ErrInvalid)
	}
	if !t.layerwise {
		return t.Wait(ctx)
	}
	return t.base.Wait(ctx, t.layersDone.Exceeded(shard))
}

// takeScratch returns memory for n refs.
func (l *Loader) takeScratch(n int) *scratch {
	sc, ok := l.scratch.Get().(*scratch)
	if !ok {
		sc = &scratch{results: make(chan result, windowBlocks+windowReads), buffers: batch.NewBuffers(l.Env)}
	}
	if need := n + windowReads; cap(sc.results) < need {
		sc.results = make(chan result, need)
	}
	if cap(sc.items) < n {
		sc.items = make([]item, n)
	}
	sc.items = sc.items[:n]
	for i := range n {
		sc.todo = append(sc.todo, int32(i))
	}
	return sc
}

// putScratch returns sc to the pool.
func (l *Loader) putScratch(sc *scratch) {
	clear(sc.items)
	clear(sc.unverified)
	clear(sc.direct)
	sc.buffers.Clear()
	sc.todo, sc.toRead, sc.filling, sc.ready = sc.todo[:0], sc.toRead[:0], sc.filling[:0], sc.ready[:0]
	l.scratch.Put(sc)
}

// newGroup returns an empty group from the free list, or a new one.
func (t *Task) newGroup(direct bool) *group {
	sc := t.sc
	var g *group
	if k := len(sc.groups); k > 0 {
		g = sc.groups[k-1]
		sc.groups = sc.groups[:k-1]
	} else {
		g = &group{wantedSums: make([][]uint64, len(t.p.Map.Layers))}
	}
	g.Group = sc.buffers.NewGroup((*owner)(t))
	if g.direct = direct; direct {
		g.Slots = t.p.Direct.Pool.Slots()
	}
	return g
}

// owner implements batch.Owner for a task.
type owner Task

// BatchResolved implements batch.Owner.
func (t *owner) BatchResolved(c stream.Completion, submittedAt time.Time, err error) {
	t.base.AddCompletion(t.l.Env.Stream.Name(), &t.p.Count.LoadPaths, c, submittedAt, err)
}

// copiesUnchecked reports whether slots of the cache are copied before the CPU has verified them,
// because the policy trusts them or because their copies are verified.
func (t *Task) copiesUnchecked() bool {
	return t.p.Verify == pipeline.VerifyFill || t.copySums && t.p.Verify == pipeline.VerifyDevice
}

// countCorruptRead counts a corrupt read of block i if the copy in its tier is correct. If the
// tier's copy was corrupt, the tier has counted it.
func (t *Task) countCorruptRead(i int32, cause error) {
	it := &t.sc.items[i]
	if it.corruptTier == 0 {
		return
	}
	t.p.CountCorrupt(t.p.TierName(it.corruptTier), t.sc.Keys[i], fmt.Errorf("wrong bytes were read: %w: %w", errdefs.ErrCorrupt, cause))
	it.corruptTier = 0
}

// dropSlot unpins the slot of a block.
func (t *Task) dropSlot(it *item) {
	it.slot.Release()
	it.slot = nil
	t.open--
}

// failBlock sets the error of block i.
func (t *Task) failBlock(i int32, err error) {
	it := &t.sc.items[i]
	if it.slot != nil {
		t.dropSlot(it)
	}
	if !pipeline.IsCorrupt(err) && !pipeline.IsNotFound(err) { // otherwise it was counted
		t.countCorruptRead(i, it.cause)
	}
	if it.cause != nil {
		err = fmt.Errorf("%w; then: %w", it.cause, err)
	}
	t.base.SetErr(i, t.blockError(i, it.touched, err))
	t.p.Count.LoadErrors.Add(1)
	if t.lease == nil && pipeline.IsNotFound(err) {
		t.p.Count.Misses.Add(1)
	}
	if t.layerwise {
		for _, k := range t.p.Map.Layers[t.sc.Groups[i]] {
			if k >= int(it.firstLayer) {
				t.completeLayer(k, 1)
			}
		}
	}
}

// blockError returns the error of block i.
func (t *Task) blockError(i int32, undefined bool, err error) task.BlockError {
	ref := &t.sc.Refs.Refs[i]
	return task.BlockError{Op: "load", Key: ref.Key, Page: ref.Page, Undefined: undefined, Err: err}
}
