package dump

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store/batch"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier"
)

// Without a cache, blocks of a dump may pass through slots of device memory instead of the window.
// The copy to the slot computes the checksums, the CPU builds the header from them, another copy
// adds it to the slot, and the tier stores the image directly. If that fails, the block is copied
// from its slot to pinned memory and stored from there: its page may already have been rewritten.

var errNoWriter = fmt.Errorf("%w: the tier stores no blocks from device memory: %w", tier.ErrNotDirect, errdefs.ErrNotSupported)

// noteNotDirect reports why a dump passes through the window, if loads use direct storage.
func (t *Task) noteNotDirect() {
	if t.p.Direct == nil || !t.p.Transient {
		return
	}
	why := t.d.notDirect
	if why == nil {
		why = pipeline.ErrNoLeaves
	}
	t.base.AddNotDirect(t.d.Env.Stream.Name(), &t.p.Count.DumpPaths, why)
}

// sealDirect builds the header of a block in a slot of device memory. It does nothing if a copy had
// no sums: the CPU then computes them from pinned memory.
func (t *Task) sealDirect(job *batch.CheckJob, position int, d *pipeline.DirectDump, key block.Key) error {
	sums := make([]uint64, len(job.ByShard))
	for k, p := range job.ByShard {
		if !p.HasSums {
			return nil
		}
		sums[k] = block.FoldLeaves(job.Group.LeafSums(p, position-p.Blocks.From, k))
	}
	f := t.p.Map.Formats[job.Part.Group]
	head := t.p.Direct.Heads.At(d.Index()).Sub(0, f.Layout.HeaderBytes())
	if err := f.SealHeader(head.Bytes(), key, sums); err != nil {
		return err
	}
	d.Head = head
	return nil
}

// direct returns the slot of device memory of the block, or nil.
func (b *blockWrite) direct() *pipeline.DirectDump {
	d, _ := b.slot.(*pipeline.DirectDump)
	return d
}

// putDirect stores a block from a slot of device memory in durable tier n. The direct write has a
// time limit. If it fails, the copy through host memory has a separate one.
func (d *Dumper) putDirect(ctx context.Context, n int, b *blockWrite) error {
	p, slot, t := d.Pipeline, b.direct(), d.Pipeline.Durable[n]
	why := fmt.Errorf("%w: the copy to device memory has no checksums", tier.ErrNotDirect)
	if slot.Head.Len > 0 {
		if why = copyExtent(ctx, d.Loads, b.image().Sub(0, slot.Head.Len), slot.Head); why != nil {
			why = fmt.Errorf("%w: copy the header to device memory: %w", tier.ErrNotDirect, why)
		} else if why = d.put(ctx, n, func(wait context.Context) error { return d.writeDirect(wait, b) }); why == nil {
			return nil
		}
	}
	failed := errors.Is(why, tier.ErrDirectFailed)
	if failed {
		p.Count.DirectFailed.Add(1)
	}
	switch {
	case ctx.Err() != nil, errors.Is(why, errdefs.ErrNoSpace):
		return why
	case failed && p.Direct.Require:
		return why
	case !failed && !errors.Is(why, tier.ErrNotDirect):
		return why
	}
	p.Index.FellBack(t, b.key(), why)
	if err := d.put(ctx, n, func(wait context.Context) error { return d.putCopy(wait, t, b) }); err != nil {
		return errors.Join(why, err)
	}
	return nil
}

// writeDirect stores a block from a slot of device memory that has its header.
func (d *Dumper) writeDirect(ctx context.Context, b *blockWrite) error {
	p, slot := d.Pipeline, b.direct()
	c := stream.Completion{Path: stream.PathCuFile, Reason: p.Direct.Reason, Bytes: b.image().Len, Pieces: 1, Started: p.Clock.Now()}
	written, quiesced, err := d.direct.PutDirect(ctx, b.key(), b.image())
	switch slot.Quiesced = quiesced; {
	case quiesced != nil:
		p.Count.Quarantined.Add(1)
	case err == nil && written:
		p.Count.DirectDumped.Add(1)
		c.Finished = p.Clock.Now()
		b.t.base.AddCompletion(d.Env.Stream.Name(), &p.Count.DumpPaths, c, c.Started, nil)
	}
	return err
}

// copyExtent copies src to dst. It waits until the copy uses neither.
func copyExtent(ctx context.Context, env *batch.Env, dst, src mem.Extent) error {
	ticket, err := env.Stream.Submit(ctx, &mem.Batch{Dst: []mem.Extent{dst}, Src: []mem.Extent{src}})
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, ticket.Cancel)()
	err = ticket.Wait(context.WithoutCancel(ctx))
	env.Stream.Resolved()
	return err
}

// putCopy copies a block from its slot of device memory to Direct.HostSlot, and stores it from
// there. It uses no slot of the window, because a dump that waits for such a slot may be waiting
// for this writer.
func (d *Dumper) putCopy(ctx context.Context, t tier.Tier, b *blockWrite) error {
	select {
	case d.hostSlot <- struct{}{}:
		defer func() { <-d.hostSlot }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	group := b.t.sc.Groups[b.i]
	f := d.Pipeline.Map.Formats[group]
	dst, src := d.Pipeline.Map.Image(mem.All(d.Pipeline.Direct.HostSlot), group), b.image()
	head := f.Layout.HeaderBytes()
	if err := copyExtent(ctx, d.Env, dst.Sub(head, dst.Len-head), src.Sub(head, src.Len-head)); err != nil {
		return err
	}
	image := dst.Bytes()
	if sealed := b.direct().Head; sealed.Len > 0 {
		copy(image, sealed.Bytes()) // the tier verifies the copy by the header
	} else if err := f.Seal(image, b.key()); err != nil {
		return err
	}
	return t.Put(ctx, b.key(), dst)
}
