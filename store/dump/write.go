package dump

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/store/pool"
	"github.com/kvlane/kvlane/tier"
)

// writeMany is the number of blocks that a writer takes at a time if a tier stores many blocks at
// less cost (tier.ManyPutter).
const writeMany = 128

// writeJob is the job that writes a block of a task. Writers take it only through Dumper.write.
type writeJob Task

// Run implements pool.Job.
func (j *writeJob) Run(i int32) { j.d.write([]pool.Item{{Job: j, Index: i}}) }

// blockWrite is a block of a dump that a writer stores. Its slot is pinned until all durable tiers
// were tried.
type blockWrite struct {
	t    *Task
	i    int32
	slot tier.Slot
	// stored is set once a durable tier has the block. errs holds the errors of the other tiers.
	stored bool
	errs   []error
}

// write stores blocks in every durable tier. A tier that fails is left out: a block is durable if
// another tier has it, and fails otherwise.
func (d *Dumper) write(items []pool.Item) {
	blocks := make([]blockWrite, 0, len(items))
	for _, item := range items {
		j, ok := item.Job.(*writeJob)
		if !ok {
			panic(fmt.Sprintf("dump: the job of a writer is a %T", item.Job))
		}
		it := &j.sc.items[item.Index]
		blocks = append(blocks, blockWrite{t: (*Task)(j), i: item.Index, slot: it.slot})
		it.slot = nil
	}
	for n := range d.Pipeline.Durable {
		d.writeTier(n, blocks)
	}
	for k := range blocks {
		b := &blocks[k]
		b.slot.Release()
		if b.stored && b.t.base.Context().Err() == nil {
			b.errs = nil
		}
		b.t.resolveBlock(b.i, errors.Join(b.errs...))
	}
}

// writeTier stores blocks in durable tier n, with one call if the tier supports that.
func (d *Dumper) writeTier(n int, blocks []blockWrite) {
	t := d.Pipeline.Durable[n]
	many, ok := t.(tier.ManyPutter)
	var together []*blockWrite
	for k := range blocks {
		b := &blocks[k]
		ctx := b.t.base.Context()
		switch err := context.Cause(ctx); {
		case err != nil:
			b.handleResult(n, err)
		case b.direct() != nil:
			b.handleResult(n, d.putDirect(ctx, n, b))
		case ok && len(blocks) > 1:
			together = append(together, b)
		default:
			b.handleResult(n, d.put(ctx, n, func(wait context.Context) error { return t.Put(wait, b.key(), b.image()) }))
		}
	}
	if len(together) == 0 {
		return
	}
	keys, images, errs := make([]block.Key, len(together)), make([]mem.Extent, len(together)), make([]error, len(together))
	for k, b := range together {
		keys[k], images[k] = b.key(), b.image()
	}
	ctx, cancel := untilAllEnd(together)
	defer cancel()
	_ = d.put(ctx, n, func(wait context.Context) error {
		many.PutMany(wait, keys, images, errs)
		// If one block finds no space, the following blocks wait too.
		return errs[max(0, slices.IndexFunc(errs, pipeline.IsBusy))]
	})
	for k, b := range together {
		b.handleResult(n, errs[k])
	}
}

// untilAllEnd returns a context that ends when the dumps of all blocks are canceled. While one dump
// is not canceled, the blocks of all are written.
func untilAllEnd(blocks []*blockWrite) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	var tasks []*Task
	for _, b := range blocks {
		if !slices.Contains(tasks, b.t) {
			tasks = append(tasks, b.t)
		}
	}
	var left atomic.Int64
	left.Store(int64(len(tasks)))
	stops := make([]func() bool, 0, len(tasks))
	for _, t := range tasks {
		stops = append(stops, context.AfterFunc(t.base.Context(), func() {
			if left.Add(-1) == 0 {
				cancel(context.Cause(t.base.Context()))
			}
		}))
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
	}
}

func (b *blockWrite) key() block.Key { return b.t.sc.Keys[b.i] }

func (b *blockWrite) image() mem.Extent { return b.t.p.Map.Image(b.slot.Extent(), b.t.sc.Groups[b.i]) }

// handleResult processes the result of a write to durable tier n.
func (b *blockWrite) handleResult(n int, err error) {
	if err == nil {
		b.stored = true
		return
	}
	p := b.t.p
	t := p.Durable[n]
	b.errs = append(b.errs, fmt.Errorf("tier %s: %w", t.Name(), err))
	if b.t.base.Context().Err() != nil {
		return // the dump is canceled
	}
	if pipeline.IsCorrupt(err) { // the slot was damaged during or after the copy
		b.slot.Corrupt(err)
		p.CountCorrupt(p.Cache.Name(), b.key(), err)
	} else {
		p.Count.TierErrors.Add(1)
	}
	p.CountLeftOut(n, b.key(), err)
	b.t.addLeftOut(n, err)
}

// fullWait bounds the wait for space after an earlier write to the same tier has timed out.
const fullWait = 10 * time.Millisecond

// put calls put with a context that bounds the wait for space in durable tier n to WaitMax, or to
// fullWait if the last such wait timed out. Otherwise the waits of all queued writes would add up.
func (d *Dumper) put(ctx context.Context, n int, put func(wait context.Context) error) error {
	p := d.Pipeline
	waitMax := p.WaitMax
	if d.full[n].Load() {
		waitMax = min(waitMax, fullWait)
	}
	bounded, cancel := p.WithTimeout(ctx, waitMax)
	defer cancel()
	err := put(bounded)
	switch {
	case err == nil:
		d.full[n].Store(false)
	case errors.Is(err, errdefs.ErrBusy) && ctx.Err() == nil:
		d.full[n].Store(true)
	}
	return err
}
