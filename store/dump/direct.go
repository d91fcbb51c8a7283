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
// The copy to the slot computes the checksums, the CPU builds the header from them, and the tier
// stores both directly. If that fails, the block is copied from its slot to pinned memory and
// stored from there: its page may already have been rewritten.

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
	head := make([]byte, f.Layout.HeaderBytes())
	if err := f.SealHeader(head, key, sums); err != nil {
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

// putDirect stores a block from a slot of device memory. wait bounds only the direct write. If that
// fails, the copy through host memory has a separate limit.
func (d *Dumper) putDirect(ctx, wait context.Context, t tier.Tier, b *blockWrite) error {
	p, slot := d.Pipeline, b.direct()
	why := fmt.Errorf("%w: the copy to device memory has no checksums", tier.ErrNotDirect)
	if slot.Head != nil {
		c := stream.Completion{Path: stream.PathCuFile, Reason: p.Direct.Reason, Bytes: b.image().Len, Pieces: 1, Started: p.Clock.Now()}
		slot.Quiesced, why = d.direct.PutDirect(wait, b.key(), slot.Head, b.image())
		if why == nil {
			p.Count.DirectDumped.Add(1)
			c.Finished = p.Clock.Now()
			b.t.base.AddCompletion(d.Env.Stream.Name(), &p.Count.DumpPaths, c, c.Started, nil)
			return nil
		}
		if slot.Quiesced != nil {
			p.Count.Quarantined.Add(1)
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
	bounded, cancel := p.WithTimeout(ctx, p.WaitMax)
	defer cancel()
	if err := d.putCopy(bounded, t, b); err != nil {
		return errors.Join(why, err)
	}
	return nil
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
	ticket, err := d.Env.Stream.Submit(ctx, &mem.Batch{Dst: []mem.Extent{dst.Sub(head, dst.Len-head)}, Src: []mem.Extent{src.Sub(head, src.Len-head)}})
	if err != nil {
		return err
	}
	err = ticket.Wait(context.WithoutCancel(ctx)) // the copy uses both slots until then
	d.Env.Stream.Resolved()
	if err != nil {
		return err
	}
	image := dst.Bytes()
	if sealed := b.direct().Head; sealed != nil {
		copy(image, sealed) // the tier verifies the copy by the header
	} else if err := f.Seal(image, b.key()); err != nil {
		return err
	}
	return t.Put(ctx, b.key(), dst)
}
