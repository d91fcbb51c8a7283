// Package write stores blocks of dumps in the durable tiers, from the slots that hold them.
package write

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
	"github.com/kvlane/kvlane/store/batch"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/store/task"
	"github.com/kvlane/kvlane/tier"
)

// writeMany is the number of blocks to write at a time if a tier stores many blocks at less cost
// (tier.ManyPutter).
const writeMany = 128

// Config configures a Writer.
type Config struct {
	Pipeline *pipeline.Pipeline
	// Dumps has the stream of dumps, which copies blocks from device memory. Loads has the stream
	// of loads. It copies headers to device memory, because that of dumps may wait for work of the
	// host program.
	Dumps, Loads *batch.Env
}

// Writer stores blocks in the durable tiers. Safe for concurrent use.
type Writer struct {
	Config
	// NotDirect is why dumps do not pass through device memory, or nil if they can.
	NotDirect error
	// MaxBlocks is the number of blocks that Write stores at less cost than one by one, or 1.
	MaxBlocks int

	direct   tier.DirectWriter // the durable tier, if dumps pass through device memory; or nil
	hostSlot chan struct{}     // semaphore of pipeline.Direct.HostSlot
	full     []atomic.Bool     // by tier: the last write timed out for want of space
}

// New returns a Writer.
func New(c Config) *Writer {
	w := &Writer{Config: c, NotDirect: pipeline.ErrNoLeaves, MaxBlocks: 1, full: make([]atomic.Bool, len(c.Pipeline.Durable))}
	if p := c.Pipeline; p.Direct != nil && p.Direct.Dumps != nil && p.Transient && p.Verify == pipeline.VerifyDevice && len(p.Durable) == 1 {
		w.NotDirect = errNoWriter
		if d, ok := p.Durable[0].(tier.DirectWriter); ok {
			if w.NotDirect = d.CanPutDirect(); w.NotDirect == nil {
				w.direct = d
			}
		}
		w.hostSlot = make(chan struct{}, 1)
	}
	for _, t := range c.Pipeline.Durable {
		if _, ok := t.(tier.ManyPutter); ok {
			w.MaxBlocks = writeMany
		}
	}
	return w
}

// Block is a block of a dump to store. Its slot is pinned until all durable tiers were tried.
type Block struct {
	Task  *task.Task
	Key   block.Key
	Group uint8 // page group
	Slot  tier.Slot
	// Err is nil if a durable tier has stored the block. LeftOut lists the tiers that have not
	// stored it, unless the task was canceled. Write sets both.
	Err     error
	LeftOut []LeftOut

	stored bool // a durable tier has the block
	errs   []error
}

// LeftOut is a durable tier that did not store a block.
type LeftOut struct {
	Tier  int // in pipeline.Pipeline.Durable
	Cause error
}

// Write stores blocks in every durable tier, and releases their slots. A tier that fails is left
// out: a block is durable if another tier has it, and fails otherwise. A block does not fail
// because of tier.ErrUnavailable.
func (w *Writer) Write(blocks []Block) {
	for n := range w.Pipeline.Durable {
		w.writeTier(n, blocks)
	}
	for k := range blocks {
		b := &blocks[k]
		b.Slot.Release()
		if !b.stored || b.Task.Context().Err() != nil {
			b.Err = errors.Join(b.errs...)
		}
	}
}

// writeTier stores blocks in durable tier n, with one call if the tier supports that.
func (w *Writer) writeTier(n int, blocks []Block) {
	t := w.Pipeline.Durable[n]
	many, ok := t.(tier.ManyPutter)
	var together []*Block
	for k := range blocks {
		b := &blocks[k]
		ctx := b.Task.Context()
		switch err := context.Cause(ctx); {
		case err != nil:
			w.handleResult(b, n, err)
		case b.direct() != nil:
			w.handleResult(b, n, w.putDirect(ctx, n, b))
		case ok && len(blocks) > 1:
			together = append(together, b)
		default:
			w.handleResult(b, n, w.put(ctx, n, 1, func(wait context.Context) error { return t.Put(wait, b.Key, w.image(b)) }))
		}
	}
	if len(together) == 0 {
		return
	}
	keys, images, errs := make([]block.Key, len(together)), make([]mem.Extent, len(together)), make([]error, len(together))
	for k, b := range together {
		keys[k], images[k] = b.Key, w.image(b)
	}
	ctx, cancel := untilAllEnd(together)
	defer cancel()
	_ = w.put(ctx, n, len(together), func(wait context.Context) error {
		many.PutMany(wait, keys, images, errs)
		// If one block finds no space, the following blocks wait too.
		return errs[max(0, slices.IndexFunc(errs, pipeline.IsBusy))]
	})
	for k, b := range together {
		w.handleResult(b, n, errs[k])
	}
}

// untilAllEnd returns a context that ends when the dumps of all blocks are canceled. While one dump
// is not canceled, the blocks of all are written.
func untilAllEnd(blocks []*Block) (context.Context, func()) {
	// The values, with the span of a trace, are those of the first.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(blocks[0].Task.Context()))
	var tasks []*task.Task
	for _, b := range blocks {
		if !slices.Contains(tasks, b.Task) {
			tasks = append(tasks, b.Task)
		}
	}
	var left atomic.Int64
	left.Store(int64(len(tasks)))
	stops := make([]func() bool, 0, len(tasks))
	for _, t := range tasks {
		stops = append(stops, context.AfterFunc(t.Context(), func() {
			if left.Add(-1) == 0 {
				cancel(context.Cause(t.Context()))
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

// image returns the image of a block in its slot.
func (w *Writer) image(b *Block) mem.Extent { return w.Pipeline.Map.Image(b.Slot.Extent(), b.Group) }

// handleResult processes the result of a write to durable tier n.
func (w *Writer) handleResult(b *Block, n int, err error) {
	if err == nil {
		b.stored = true
		return
	}
	p := w.Pipeline
	t := p.Durable[n]
	if !errors.Is(err, tier.ErrUnavailable) || b.Task.Context().Err() != nil {
		b.errs = append(b.errs, fmt.Errorf("tier %s: %w", t.Name(), err))
	}
	if b.Task.Context().Err() != nil {
		return // the dump is canceled
	}
	if pipeline.IsCorrupt(err) { // the slot was damaged during or after the copy
		b.Slot.Corrupt(err)
		p.CountCorrupt(p.Cache.Name(), b.Key, err)
	} else {
		p.Count.TierErrors.Add(1)
	}
	p.CountLeftOut(n, b.Key, err)
	b.LeftOut = append(b.LeftOut, LeftOut{n, err})
}

// fullWait bounds the wait for space after an earlier write to the same tier has timed out.
const fullWait = 10 * time.Millisecond

// put calls put with a context that bounds the wait for space in durable tier n to WaitMax, or to
// fullWait if the last such wait timed out. Otherwise the waits of all queued writes would add up.
func (w *Writer) put(ctx context.Context, n, blocks int, put func(wait context.Context) error) error {
	p := w.Pipeline
	waitMax := p.WaitMax
	if w.full[n].Load() {
		waitMax = min(waitMax, fullWait)
	}
	bounded, cancel := p.WithTimeout(ctx, waitMax)
	defer cancel()
	bounded, end := p.StartSpan(bounded, pipeline.Span{Operation: "put", Tier: p.Durable[n].Name(), Blocks: blocks})
	err := put(bounded)
	end(err)
	switch {
	case err == nil:
		w.full[n].Store(false)
	case errors.Is(err, errdefs.ErrBusy) && ctx.Err() == nil:
		w.full[n].Store(true)
	}
	return err
}
