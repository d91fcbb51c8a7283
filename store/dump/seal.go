package dump

import (
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store/batch"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/store/pool"
	"github.com/kvlane/kvlane/store/write"
	"github.com/kvlane/kvlane/tier"
)

// Check implements batch.Owner: it seals and publishes the blocks of a job.
func (o *owner) Check(job *batch.CheckJob) {
	t := (*Task)(o)
	job.ByShard = job.Group.PartByShard(job.ByShard, job.Part)
	for k, i := range job.Items() {
		it := &t.sc.items[i]
		fill := it.fill
		it.fill = nil
		var err error
		if d, ok := fill.(*pipeline.DirectDump); ok {
			err = t.sealDirect(job, job.Position(k), d, t.sc.Keys[i])
		} else {
			err = t.seal(job, job.Position(k), t.p.Map.Image(fill.Extent(), t.sc.Groups[i]).Bytes(), t.sc.Keys[i])
		}
		switch {
		case err == nil:
			it.slot, err = pipeline.Publish(fill)
		case pipeline.IsCorrupt(err):
			t.p.CountCorrupt(t.p.Cache.Name(), t.sc.Keys[i], err)
			fallthrough
		default:
			fill.Abort(err)
		}
		if err != nil {
			job.AddFailure(i, err)
		}
	}
}

// seal completes the image of a block with the checksums of its shards. position is that of the
// block in its page group. The checksums are the sums of the copies. The CPU computes the missing
// ones and, except under VerifyDevice, compares the others with the slot.
func (t *Task) seal(job *batch.CheckJob, position int, image []byte, key block.Key) error {
	f := t.p.Map.Formats[job.Part.Group]
	if !t.copySums {
		return f.Seal(image, key)
	}
	var array [256]uint64 // avoids an allocation for each block
	sums := array[:]
	if n := len(job.ByShard); n > len(array) {
		sums = make([]uint64, n)
	}
	sums = sums[:len(job.ByShard)]
	for k, p := range job.ByShard {
		if p.HasSums {
			sums[k] = block.FoldLeaves(job.Group.LeafSums(p, position-p.Blocks.From, k))
			if t.p.Verify == pipeline.VerifyDevice {
				continue
			}
		}
		sum := f.SumShard(image, k)
		if p.HasSums && sum != sums[k] {
			return fmt.Errorf("shard %d in the slot differs from the page: %w", k, errdefs.ErrCorrupt)
		}
		sums[k] = sum
	}
	return f.SealWith(image, key, sums)
}

// handleSealed passes the sealed blocks of part n of g to the writers.
func (t *Task) handleSealed(g *group, n int) {
	for _, i := range g.ItemsOf(g.Parts[n]) {
		if f := g.FirstFailure(i); f != nil {
			t.resolveBlock(i, f.Err)
			continue
		}
		slot := t.sc.items[i].slot
		t.sc.items[i].slot = nil
		t.enqueueWrite(i, slot)
	}
}

// enqueueWrite passes a pinned block to the writers. If there are no durable tiers, the block is
// already durable.
func (t *Task) enqueueWrite(i int32, slot tier.Slot) {
	if len(t.p.Durable) == 0 {
		slot.Release()
		t.resolveBlock(i, nil)
		return
	}
	t.sc.items[i].slot = slot
	t.d.writers.Push((*writeJob)(t), i)
}

// noteNotDirect reports why a dump passes through the window, if loads use direct storage.
func (t *Task) noteNotDirect() {
	if t.p.Direct == nil || !t.p.Transient {
		return
	}
	why := t.d.writer.NotDirect
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

// writeJob is the job that writes a block of a task. Writers take it only through Dumper.write.
type writeJob Task

// Run implements pool.Job.
func (j *writeJob) Run(i int32) { j.d.write([]pool.Item{{Job: j, Index: i}}) }

// write stores blocks of any dumps in the durable tiers.
func (d *Dumper) write(items []pool.Item) {
	blocks := make([]write.Block, len(items))
	tasks := make([]*Task, len(items))
	for k, item := range items {
		j, ok := item.Job.(*writeJob)
		if !ok {
			panic(fmt.Sprintf("dump: the job of a writer is a %T", item.Job))
		}
		t, it := (*Task)(j), &j.sc.items[item.Index]
		tasks[k], blocks[k] = t, write.Block{Task: t.base, Key: t.sc.Keys[item.Index], Group: t.sc.Groups[item.Index], Slot: it.slot}
		it.slot = nil
	}
	d.writer.Write(blocks)
	for k, t := range tasks {
		for _, l := range blocks[k].LeftOut {
			t.addLeftOut(l.Tier, l.Cause)
		}
		t.resolveBlock(items[k].Index, blocks[k].Err)
	}
}
