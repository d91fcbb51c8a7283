package write

import (
	"context"
	"errors"
	"fmt"

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

// direct returns the slot of device memory of the block, or nil.
func (b *Block) direct() *pipeline.DirectDump {
	d, _ := b.Slot.(*pipeline.DirectDump)
	return d
}

// putDirect stores a block from a slot of device memory in durable tier n. The direct write has a
// time limit. If it fails, the copy through host memory has a separate one.
func (w *Writer) putDirect(ctx context.Context, n int, b *Block) error {
	p, slot, t := w.Pipeline, b.direct(), w.Pipeline.Durable[n]
	why := fmt.Errorf("%w: the copy to device memory has no checksums", tier.ErrNotDirect)
	if slot.Head.Len > 0 {
		if why = copyExtent(ctx, w.Loads, w.image(b).Sub(0, slot.Head.Len), slot.Head); why != nil {
			why = fmt.Errorf("%w: copy the header to device memory: %w", tier.ErrNotDirect, why)
		} else if why = w.put(ctx, n, 1, func(wait context.Context) error { return w.writeDirect(wait, b) }); why == nil {
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
	p.Index.FellBack(t, b.Key, why)
	if err := w.put(ctx, n, 1, func(wait context.Context) error { return w.putCopy(wait, t, b) }); err != nil {
		return errors.Join(why, err)
	}
	return nil
}

// writeDirect stores a block from a slot of device memory that has its header.
func (w *Writer) writeDirect(ctx context.Context, b *Block) error {
	p, slot := w.Pipeline, b.direct()
	c := stream.Completion{Path: stream.PathCuFile, Reason: p.Direct.Reason, Bytes: w.image(b).Len, Pieces: 1, Started: p.Clock.Now()}
	written, quiesced, err := w.direct.PutDirect(ctx, b.Key, w.image(b))
	switch slot.Quiesced = quiesced; {
	case quiesced != nil:
		p.Count.Quarantined.Add(1)
	case err == nil && written:
		p.Count.DirectDumped.Add(1)
		c.Finished = p.Clock.Now()
		b.Task.AddCompletion(w.Dumps.Stream.Name(), &p.Count.DumpPaths, c, c.Started, nil)
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
func (w *Writer) putCopy(ctx context.Context, t tier.Tier, b *Block) error {
	select {
	case w.hostSlot <- struct{}{}:
		defer func() { <-w.hostSlot }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	f := w.Pipeline.Map.Formats[b.Group]
	dst, src := w.Pipeline.Map.Image(mem.All(w.Pipeline.Direct.HostSlot), b.Group), w.image(b)
	head := f.Layout.HeaderBytes()
	if err := copyExtent(ctx, w.Dumps, dst.Sub(head, dst.Len-head), src.Sub(head, src.Len-head)); err != nil {
		return err
	}
	image := dst.Bytes()
	if sealed := b.direct().Head; sealed.Len > 0 {
		copy(image, sealed.Bytes()) // the tier verifies the copy by the header
	} else if err := f.Seal(image, b.Key); err != nil {
		return err
	}
	return t.Put(ctx, b.Key, dst)
}
