package read

import (
	"github.com/kvlane/kvlane/store/pipeline"
)

// sumsOf returns memory for the checksums of block i.
func (b *Blocks) sumsOf(i int32) []uint64 {
	n := b.c.Pipeline.Map.Formats.MaxShards()
	return b.unverifiedSums[int(i)*n : int(i)*n : int(i+1)*n]
}

// directBlock returns memory for reading block i directly, or nil if the block must pass through
// the cache. After a failure of the block the CPU must be able to verify it.
func (b *Blocks) directBlock(i int32) *pipeline.DirectBlock {
	it := &b.Items[i]
	if !b.readDirect || it.badCopies > 0 || it.cause != nil {
		return nil
	}
	d := &b.direct[i]
	d.Reset(b.sumsOf(i), b.o.Promotion == PromoteNone)
	return d
}

// IsDirect reports whether block i is in a slot of device memory.
func (b *Blocks) IsDirect(i int32) bool {
	_, ok := b.Items[i].Slot.(*pipeline.DirectBlock)
	return ok
}

// noteDirect records the reason if block i should have been read directly but was not.
func (b *Blocks) noteDirect(i int32) {
	if !b.readDirect {
		return
	}
	if d := &b.direct[i]; d.Failed != nil {
		b.NoteNotDirect(d.Failed)
		d.Failed = nil
	}
}

// NoteNotDirect records the first reason why a block of the load passes through host memory.
func (b *Blocks) NoteNotDirect(why error) {
	if b.notDirect {
		return
	}
	b.notDirect = true
	b.o.Task.AddNotDirect(b.c.Direction, &b.c.Pipeline.Count.LoadPaths, why)
}

// RetryRead drops a direct block that failed with err, and reads it through the cache. If the block
// was corrupt, that read shows whether the file or the direct read was at fault.
func (b *Blocks) RetryRead(i int32, err error) {
	it := &b.Items[i]
	if pipeline.IsCorrupt(err) {
		it.corruptTier = it.Tier
	}
	b.DropSlot(it)
	b.retry(i, err)
}
