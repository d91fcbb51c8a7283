// Package load copies blocks from the tiers to pages and verifies them. A Loader starts tasks. Each
// task finds its blocks (package read), copies slots to pages by batches, and verifies the copies.
package load

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store/admission"
	"github.com/kvlane/kvlane/store/batch"
	"github.com/kvlane/kvlane/store/index"
	"github.com/kvlane/kvlane/store/layers"
	"github.com/kvlane/kvlane/store/pages"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/store/pool"
	"github.com/kvlane/kvlane/store/read"
	"github.com/kvlane/kvlane/store/task"
	"github.com/kvlane/kvlane/tier"
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
	read        read.Config
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
	Progress layers.Progress
	// Promotion selects the blocks of tiers below that enter the cache. Other blocks are read
	// directly.
	Promotion read.Promotion
}

// New returns a Loader.
func New(c Config) *Loader {
	m := c.Env.Map
	first := m.LayerBytes(0)
	return &Loader{
		Config:      c,
		batchBlocks: int(min(max(1, c.BatchBytes/m.Formats.MaxImageBytes()), math.MaxInt32)),
		pieceBlocks: int(max(1, HeadParts*c.PartBytes/first)),
		read:        read.Config{Pipeline: c.Pipeline, Readers: c.Readers, Checks: c.Env.Checks, Direction: c.Env.Stream.Name()},
	}
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
	base := task.New(ctx, p, l.Scheduler, task.Load, "load", len(refs))
	t := &Task{
		Handle: &base.Handle, base: base, l: l, p: p, lease: lease, layerwise: o.Layerwise,
		sc: sc, startedAt: p.Clock.Now(),
	}
	t.groups = t.groupsArray[:0]
	sc.buffers.SetPages(pg)
	t.copySums = p.Verify != pipeline.VerifyFill && sc.buffers.CanSum()
	ro := read.Options{Task: t.base, Leased: lease != nil, CopySums: t.copySums, Promotion: o.Promotion}
	t.layers.Begin(p, t.base, o.Progress)
	if t.layerwise {
		ro.Layers = &t.layers
		sc.layerLeft = t.layers.Count(sc.Groups, sc.layerLeft)
	}
	sc.Begin(&l.read, ro)
	if task.Pending(o.After) {
		t.after = slices.Clone(o.After)
	}
	if lease == nil && len(p.Lower) > 0 {
		p.Index.Use(o.Before, sc.Keys)
	}
	p.Count.Loads.Add(1)
	l.Scheduler.Start((*runner)(t))
	return t, nil
}

// scratch is the memory of a load. It is pooled.
type scratch struct {
	read.Blocks
	slots     []tier.Slot // to be released
	layerLeft []int       // of layers.Counter
	buffers   *batch.Buffers
	groups    []*group // free list
}

// takeScratch returns memory for n refs.
func (l *Loader) takeScratch(n int) *scratch {
	sc, ok := l.scratch.Get().(*scratch)
	if !ok {
		sc = &scratch{buffers: batch.NewBuffers(l.Env)}
	}
	sc.Reserve(n)
	return sc
}

// putScratch returns sc to the pool.
func (l *Loader) putScratch(sc *scratch) {
	sc.Clear()
	sc.buffers.Clear()
	l.scratch.Put(sc)
}
