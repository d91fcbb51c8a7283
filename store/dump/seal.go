package dump

import (
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store/batch"
	"github.com/kvlane/kvlane/store/pipeline"
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
