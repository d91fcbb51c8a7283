// Package dump copies blocks from pages to the tiers. A Dumper starts tasks. Each task copies pages
// to slots of the cache by batches, seals and publishes the blocks, and writes them to the tiers
// below (package write).
package dump

import (
	"context"
	"fmt"
	"math"

	"golang.org/x/sync/semaphore"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store/batch"
	"github.com/kvlane/kvlane/store/pages"
	"github.com/kvlane/kvlane/store/pool"
	"github.com/kvlane/kvlane/store/stat"
	"github.com/kvlane/kvlane/store/task"
	"github.com/kvlane/kvlane/store/write"
	"github.com/kvlane/kvlane/tier"
)

// maxChunk is the largest number of blocks that wait for the host program at a time.
const maxChunk = 512

// New returns a Dumper. It starts the writers.
func New(c Config) *Dumper {
	d := &Dumper{
		Config:       c,
		batchBlocks:  int(min(max(1, c.BatchBytes/c.Env.Map.Formats.MaxImageBytes()), math.MaxInt32)),
		waitingSlots: newWaitingSlots(c.WaitingSlots),
		writer:       write.New(write.Config{Pipeline: c.Pipeline, Dumps: c.Env, Loads: c.Loads}),
	}
	if p := c.Pipeline; p.Direct != nil && p.Direct.Dumps != nil {
		d.waitingDirect = newWaitingSlots(max(1, int64(p.Direct.Dumps.Stats().Slots)/2))
	}
	d.writers = pool.NewGrouped(c.Writers, d.writer.MaxBlocks, d.write)
	return d
}

// waitingSlots bounds the slots that dumps hold while they wait for the host program.
type waitingSlots struct {
	*semaphore.Weighted
	slots  int64
	blocks int // of one dump at a time, so that two large dumps wait
}

func newWaitingSlots(slots int64) waitingSlots {
	return waitingSlots{semaphore.NewWeighted(slots), slots, int(min((slots+1)/2, maxChunk))}
}

// WriteWaits returns how long blocks waited for a writer.
func (d *Dumper) WriteWaits() stat.Latency { return d.writers.Waits() }

// Close stops the writers. All dumps must have ended.
func (d *Dumper) Close() { d.writers.Close() }

// Dump stores each ref's block from its page: see store.Store.Dump.
func (d *Dumper) Dump(ctx context.Context, pg *pages.Pages, refs []pages.Ref, o Options) (*Task, error) {
	fail := func(err error) (*Task, error) { return nil, fmt.Errorf("dump %d blocks: %w", len(refs), err) }
	p := d.Pipeline
	if err := pg.Validate(p.Map); err != nil {
		return fail(err)
	}
	if p.Transient && len(p.Durable) == 0 {
		return fail(fmt.Errorf("no tier of the pipeline is writable: %w", errdefs.ErrReadOnly))
	}
	if err := d.Scheduler.Begin(ctx, task.Dump); err != nil {
		return fail(err)
	}
	sc := d.takeScratch(len(refs))
	if err := sc.Set(p.Map, pg, refs, false); err != nil {
		d.putScratch(sc)
		d.Scheduler.End(task.Dump)
		return fail(err)
	}
	base := task.New(ctx, p, d.Scheduler, task.Dump, "dump", len(refs))
	t := &Task{
		Handle: &base.Handle, base: base, d: d, p: p, startedAt: p.Clock.Now(), layerwise: o.Layerwise,
		sourceFree: make(chan struct{}), published: make(chan struct{}),
		blocksLeft: len(refs), running: true, sc: sc, sourceLeft: len(refs),
	}
	t.after = append(t.after, o.After...)
	if t.layerwise {
		n := p.Map.NumLayers()
		t.shards, t.submitted = make(chan submission, n), make([]bool, n)
	}
	sc.buffers.SetPages(pg)
	t.copySums = sc.buffers.CanSum()
	p.Index.Use(o.Before, sc.Keys)
	p.Count.Dumps.Add(1)
	d.Scheduler.Start((*runner)(t))
	return t, nil
}

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

// takeScratch returns memory for n refs.
func (d *Dumper) takeScratch(n int) *scratch {
	sc, ok := d.scratch.Get().(*scratch)
	if !ok {
		sc = &scratch{buffers: batch.NewBuffers(d.Env)}
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
func (d *Dumper) putScratch(sc *scratch) {
	clear(sc.items)
	sc.buffers.Clear()
	sc.todo, sc.filling = sc.todo[:0], sc.filling[:0]
	d.scratch.Put(sc)
}
