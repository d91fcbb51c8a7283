// Package load copies blocks from the tiers to pages and verifies them. A Loader starts tasks. Each
// task opens the slots of cached blocks, reads other blocks from the tiers below, copies slots to
// pages by batches, and verifies the copies.
package load

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store/admission"
	"github.com/kvlane/kvlane/store/batch"
	"github.com/kvlane/kvlane/store/index"
	"github.com/kvlane/kvlane/store/pages"
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
	// BatchBytes, PartBytes and RowBytes are those of store.Config.
	BatchBytes, PartBytes, RowBytes int64
}

// Loader starts loads. Safe for concurrent use.
type Loader struct {
	Config
	batchBlocks int // blocks of a batch, at most
	pieceBlocks int // blocks of a piece of the first layer, at least: see Task.copyHead
	scratch     sync.Pool
}

// HeadParts and WholeParts are sizes of copies as multiples of Config.PartBytes. A piece of the
// first layer has HeadParts: smaller pieces gain less than they lose beside a model, where each
// batch waits for multiprocessors. A part of a load that is not layerwise has WholeParts.
const (
	HeadParts  = 4
	WholeParts = 4
)

// New returns a Loader.
func New(c Config) *Loader {
	m := c.Env.Map
	first := m.LayerBytes(0)
	return &Loader{
		Config:      c,
		batchBlocks: int(min(max(1, c.BatchBytes/m.Formats.MaxImageBytes()), math.MaxInt32)),
		pieceBlocks: int(max(1, HeadParts*c.PartBytes/first)),
	}
}

// Options are options of a load.
type Options struct {
	// Layerwise copies shard by shard, in order, so that WaitShard(0) returns while later shards
	// are being copied. The shards of a load are the layers of the model, over all page groups. A
	// block has those of its group. Some complete together: see store.Config.PartBytes and
	// RowBytes.
	Layerwise bool
	// After holds dependencies that must resolve before the pages are written, such as work of a
	// stream that still uses them. The host waits for them, also for a stream.Recorded: on the
	// device, all later batches of the load stream would wait as well. The wait ends only with
	// Cancel or with the store's Close. The waiting load holds no slots but those of its lease. If
	// a dependency fails, the load fails and its pages are unchanged.
	After []mem.Dependency
	// Before is the block before the first ref's in the prompt, or zero. With a lease it may be
	// omitted. It makes the tiers evict the end of a prompt before its beginning, and has no other
	// effect.
	Before block.Key
	// Progress, if not nil, receives completed shards and the end of the load.
	Progress Progress
}

// Task is a running load. All methods are safe for concurrent use. It need not be waited for.
type Task struct {
	base *task.Task
	l    *Loader
	p    *pipeline.Pipeline

	lease      *index.Lease
	after      []mem.Dependency // nil once they have resolved
	layerwise  bool
	copySums   bool // the stream sums copies, and blocks are verified by these sums
	unverified bool // tiers below read without verifying, since copies are verified
	progress   progress

	layersDone pool.Watermark // layerwise: layers that no block waits for, from the first

	// The task's goroutine owns the rest.
	sc          *scratch
	startedAt   time.Time
	cacheBytes  int64    // loaded from the cache
	lowerBytes  int64    // loaded from the tiers below
	layerLeft   []int    // layerwise: blocks that wait for each layer
	open        int      // blocks with a slot, or with a job that may give them one
	verifying   int      // verify jobs that have not finished
	reading     int      // fetch jobs that have not finished
	groups      []*group // being copied or checked
	inFlight    int      // groups being copied
	stopped     bool     // see stop
	groupsArray [2]*group
}

// Load copies each ref's block to its page and verifies it: see store.Store.Load.
func (l *Loader) Load(ctx context.Context, lease *index.Lease, pg *pages.Pages, refs []pages.Ref, o Options) (*Task, error) {
	fail := func(err error) (*Task, error) { return nil, fmt.Errorf("load %d blocks: %w", len(refs), err) }
	p := l.Pipeline
	if err := pg.Validate(p.Map); err != nil {
		return fail(err)
	}
	if err := l.Scheduler.Begin(ctx, task.Load); err != nil {
		return fail(err)
	}
	sc := l.takeScratch(len(refs))
	err := sc.Set(p.Map, pg, refs, true)
	if err == nil && lease != nil {
		err = lease.Begin(p.Index, sc.Keys)
	}
	if err != nil {
		l.putScratch(sc)
		l.Scheduler.End(task.Load)
		return fail(err)
	}
	t := &Task{
		base: task.New(p, l.Scheduler, task.Load, len(refs)), l: l, p: p, lease: lease, layerwise: o.Layerwise,
		sc: sc, startedAt: p.Clock.Now(),
	}
	t.groups = t.groupsArray[:0]
	sc.buffers.SetPages(pg)
	t.copySums = p.Verify != pipeline.VerifyFill && sc.buffers.CanSum()
	if t.unverified = t.copySums && p.Verify == pipeline.VerifyDevice && p.Unverified; t.unverified {
		sc.reserveUnverified(p.Map.Formats.MaxShards())
	}
	if t.layerwise {
		t.countLayers()
	}
	if task.Pending(o.After) {
		t.after = slices.Clone(o.After)
	}
	if lease == nil && len(p.Lower) > 0 {
		p.Index.Use(o.Before, sc.Keys)
	}
	p.Count.Loads.Add(1)
	t.progress.begin(o.Progress, t)
	l.Scheduler.Start((*runner)(t))
	return t, nil
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

// reportLayers reports the layers that no block waits for.
func (t *Task) reportLayers() {
	n := t.layersDone.Value()
	for n < len(t.layerLeft) && t.layerLeft[n] == 0 {
		n++
	}
	if t.layersDone.Advance(n) {
		t.progress.advance(n)
	}
}

// completeLayer counts n blocks that no longer wait for a layer.
func (t *Task) completeLayer(layer, n int) {
	if t.layerLeft[layer] -= n; t.layerLeft[layer] == 0 {
		t.reportLayers()
	}
}

// Done returns a channel that is closed when the load has ended: every block has its result, and
// the task's pages and slots are no longer accessed.
func (t *Task) Done() <-chan struct{} { return t.base.Done() }

// Cancel cancels the load. It does not wait: the load ends when the hardware has stopped, and
// unfinished blocks fail with ErrCanceled.
func (t *Task) Cancel() { t.base.Cancel() }

// Errs returns one error for each block, each a *BlockError, nil for those that succeeded. Before
// Done is closed it returns nil.
func (t *Task) Errs() []error { return t.base.Errs() }

// Paths returns the completions of the batches that have resolved so far, in that order.
func (t *Task) Paths() []stream.Completion { return t.base.Completions() }

// Wait waits until the load has ended and returns the errors of its blocks, joined. If ctx ends
// first, it returns the cause of ctx.
func (t *Task) Wait(ctx context.Context) error { return t.base.Wait(ctx, t.base.Done()) }

// WaitShard waits until the shard, and those before it, are on the page of every block that will
// get them, verified. It returns the errors of the blocks that have failed so far. Later copies do
// not write a shard that was waited for. Without Options.Layerwise it is Wait.
func (t *Task) WaitShard(ctx context.Context, shard int) error {
	if shard < 0 || shard >= t.p.Map.NumLayers() {
		return fmt.Errorf("wait for shard %d of %d: %w", shard, t.p.Map.NumLayers(), errdefs.ErrInvalid)
	}
	if !t.layerwise {
		return t.Wait(ctx)
	}
	return t.base.Wait(ctx, t.layersDone.Exceeded(shard))
}
