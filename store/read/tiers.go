package read

import (
	"runtime"
	"slices"

	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/tier"
)

// LookUp opens the blocks among the next n of Todo that are in the cache, and puts the others
// aside, to be read or waited for. It does not block. If the CPU verifies slots before their copy,
// windowBlocks bounds the slots.
func (b *Blocks) LookUp(n int) {
	if !b.CopiesUnchecked {
		n = min(n, windowBlocks-b.open)
	}
	if n <= 0 {
		return
	}
	b.slots, b.states = slices.Grow(b.slots[:0], n)[:n], slices.Grow(b.states[:0], n)[:n]
	err := b.c.Pipeline.Cache.OpenReady(b.o.Task.Context(), b.KeysOf(b.Todo[:n]), b.slots, b.states)
	for k, i := range b.Todo[:n] {
		switch {
		case err != nil:
			b.Fail(i, err)
		case b.slots[k] != nil:
			b.setCached(i, b.slots[k])
		case b.states[k] == tier.Filling:
			b.filling = append(b.filling, i)
		default:
			b.toRead = append(b.toRead, i)
		}
	}
	clear(b.slots)
	b.Todo = append(b.Todo[:0], b.Todo[n:]...)
}

// setCached sets the slot of a block that was found in the cache.
func (b *Blocks) setCached(i int32, slot tier.Slot) {
	it := &b.Items[i]
	b.countCorruptRead(i, it.cause)
	it.Slot, it.Tier, it.Checked = slot, 0, false
	b.open++
	if b.CopiesUnchecked && (b.c.Pipeline.Verify == pipeline.VerifyFill || slot.Sums() != nil) {
		b.Ready = append(b.Ready, i)
		return
	}
	b.enqueueVerify(i)
}

// fetchJob and verifyJob are jobs of Blocks in the pools of readers and checkers.
type (
	fetchJob  Blocks
	verifyJob Blocks
)

// yieldBytes is the size of loads above which readers yield after each block. Yielding costs
// smaller loads more batches.
const yieldBytes = 16 << 20

// Run implements pool.Job: it reads block i from a tier below. In large loads it then yields, so
// that the task copies the block before the next one is read from the page cache.
func (j *fetchJob) Run(i int32) {
	b := (*Blocks)(j)
	if int64(len(b.Keys))*b.c.Pipeline.Map.Formats[b.Groups[i]].Layout.ImageBytes() > yieldBytes {
		defer runtime.Gosched()
	}
	it := &b.Items[i]
	var err error
	it.Slot, it.Tier, err = b.c.Pipeline.Fetch(b.o.Task.Context(), b.Keys[i:i+1],
		pipeline.FetchOptions{Wait: true, Leased: b.o.Leased, Unverified: b.unverifiedSlot(i), Direct: b.directBlock(i)})
	b.Results <- Result{true, i, err}
}

// Run implements pool.Job: it verifies the slot of block i.
func (j *verifyJob) Run(i int32) {
	b := (*Blocks)(j)
	image := b.c.Pipeline.Map.Image(b.Items[i].Slot.Extent(), b.Groups[i])
	err := b.c.Pipeline.Map.Formats[b.Groups[i]].Verify(image.Bytes(), b.Keys[i])
	b.Results <- Result{false, i, err}
}

// enqueueVerify starts a job that verifies the slot of block i.
func (b *Blocks) enqueueVerify(i int32) {
	b.Verifying++
	b.c.Checks.Push((*verifyJob)(b), i)
}

// StartReads starts jobs for blocks that are not in the cache.
func (b *Blocks) StartReads() {
	n := min(len(b.toRead), windowReads-b.reading)
	for _, i := range b.toRead[:n] {
		b.reading++
		b.open++
		b.c.Readers.Push((*fetchJob)(b), i)
	}
	b.toRead = append(b.toRead[:0], b.toRead[n:]...)
}

// unverifiedSlot returns memory for reading block i without verification, or nil if the block must
// be verified. After a failure of the block the tier must verify it, so that it can set a corrupt
// copy aside.
func (b *Blocks) unverifiedSlot(i int32) *pipeline.Unverified {
	it := &b.Items[i]
	if !b.readUnverified || it.badCopies > 0 || it.cause != nil {
		return nil
	}
	u := &b.unverified[i]
	u.Reset(b.sumsOf(i))
	return u
}

// isUnverified reports whether block i was read without verification and has not been verified
// since.
func (b *Blocks) isUnverified(i int32) bool {
	_, ok := b.Items[i].Slot.(*pipeline.Unverified)
	return ok
}

// Publish publishes block i if it was read without verification. After an error the slot must not
// be used.
func (b *Blocks) Publish(i int32) error {
	it := &b.Items[i]
	u, ok := it.Slot.(*pipeline.Unverified)
	if !ok {
		return nil
	}
	slot, err := u.Publish()
	if err != nil {
		b.c.Pipeline.Index.FellBack(b.c.Pipeline.Cache, b.Keys[i], err)
		return err
	}
	it.Slot = slot
	return nil
}

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
