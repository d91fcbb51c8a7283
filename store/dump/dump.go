// Package dump copies blocks from pages to the tiers. A Dumper starts tasks. Each task copies pages
// to slots of the cache by batches, seals and publishes the blocks, and writes them to the tiers
// below.
package dump

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store/pages"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/store/pool"
	"github.com/kvlane/kvlane/store/stat"
	"github.com/kvlane/kvlane/store/task"
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
		full:         make([]atomic.Bool, len(c.Pipeline.Durable)),
	}
	if p := c.Pipeline; p.Direct != nil && p.Direct.Dumps != nil && p.Transient && p.Verify == pipeline.VerifyDevice && len(p.Durable) == 1 {
		d.notDirect = errNoWriter
		if w, ok := p.Durable[0].(tier.DirectWriter); ok {
			if d.notDirect = w.CanPutDirect(); d.notDirect == nil {
				d.direct = w
			}
		}
		d.hostSlot = make(chan struct{}, 1)
		d.waitingDirect = newWaitingSlots(max(1, int64(p.Direct.Dumps.Stats().Slots)/2))
	}
	maxItems := 1
	for _, t := range c.Pipeline.Durable {
		if _, ok := t.(tier.ManyPutter); ok {
			maxItems = writeMany
		}
	}
	d.writers = pool.NewGrouped(c.Writers, maxItems, d.write)
	return d
}

// waitingSlots bounds the slots that dumps hold while they wait for the client.
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
	t := &Task{
		base: task.New(p, d.Scheduler, task.Dump, len(refs)), d: d, p: p, startedAt: p.Clock.Now(), layerwise: o.Layerwise,
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
