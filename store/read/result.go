package read

import (
	"context"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/store/task"
)

const maxCopies = 3 // copies of a block before it fails

// Result is the result of a job.
type Result struct {
	fetched bool // else verified
	i       int32
	err     error
}

// Handle processes a result and all others that are available, so that their blocks share a batch.
func (b *Blocks) Handle(r Result) {
	for {
		if r.fetched {
			b.handleFetched(r.i, r.err)
		} else {
			b.handleVerified(r.i, r.err)
		}
		select {
		case r = <-b.Results:
		default:
			return
		}
	}
}

// handleVerified processes a block whose slot was verified.
func (b *Blocks) handleVerified(i int32, err error) {
	b.Verifying--
	if err != nil {
		b.handleCorruptSlot(i, err)
		return
	}
	it := &b.Items[i]
	err = b.Publish(i)
	if it.badCopies > 0 && !b.handleBadCopy(i) {
		return
	}
	if err != nil {
		it.badCopies++ // makes the next read verify the block before it is published
		b.DropSlot(it)
		b.retry(i, err)
		return
	}
	it.Checked = true
	b.setReady(i)
}

// handleFetched processes the result of reading a block from a tier below.
func (b *Blocks) handleFetched(i int32, err error) {
	b.reading--
	it := &b.Items[i]
	b.noteDirect(i)
	switch {
	case err == nil && b.IsDirect(i):
		b.setReady(i)
		return
	case err == nil && b.isUnverified(i):
		b.setUnverified(i)
		return
	}
	if err == nil {
		if it.Tier != it.corruptTier { // that tier's copy is corrupt, and the tier has counted it
			it.corruptTier = 0
		}
		b.countCorruptRead(i, it.cause)
	}
	it.Checked = err == nil
	switch {
	case err == nil:
		b.setReady(i)
	case pipeline.IsExists(err) && !b.stopped:
		b.open--
		b.filling = append(b.filling, i)
	default:
		b.open--
		b.Fail(i, err)
	}
}

// Stop fails all blocks except those that are being read, verified or copied. The task's context
// has ended: the others fail when their jobs have finished.
func (b *Blocks) Stop() {
	b.stopped = true
	cause := context.Cause(b.o.Task.Context())
	for _, list := range []*[]int32{&b.Todo, &b.toRead, &b.filling, &b.Ready} {
		b.failAll(list, cause)
	}
}

// FailTodo fails the blocks of Todo.
func (b *Blocks) FailTodo(err error) { b.failAll(&b.Todo, err) }

func (b *Blocks) failAll(list *[]int32, err error) {
	for _, i := range *list {
		b.Fail(i, err)
	}
	*list = (*list)[:0]
}

// setReady makes block i ready, or fails it if the task has stopped.
func (b *Blocks) setReady(i int32) {
	if b.stopped {
		b.Fail(i, context.Cause(b.o.Task.Context()))
		return
	}
	b.Ready = append(b.Ready, i)
}

// setUnverified makes an unverified block ready if its copy can be verified. Otherwise the CPU
// verifies the block first.
func (b *Blocks) setUnverified(i int32) {
	it := &b.Items[i]
	if !b.stopped && it.Slot.Sums() == nil {
		b.enqueueVerify(i)
		return
	}
	it.Checked = false
	b.setReady(i)
}

// handleCorruptSlot drops a slot that failed its check and reads the block again. If the block was
// read without verification, either the tier's copy or the read was corrupt. The next read shows
// which.
func (b *Blocks) handleCorruptSlot(i int32, err error) {
	it := &b.Items[i]
	if b.isUnverified(i) {
		it.corruptTier = it.Tier
	} else {
		b.c.Pipeline.CountCorrupt(b.c.Pipeline.Cache.Name(), b.Keys[i], err)
	}
	it.Slot.Corrupt(err)
	b.DropSlot(it)
	b.retry(i, err)
}

// retry reads block i again after it failed with err and lost its slot. If no retry is possible,
// the block fails.
func (b *Blocks) retry(i int32, err error) {
	it := &b.Items[i]
	if len(b.c.Pipeline.Lower) == 0 || b.stopped || it.badCopies >= maxCopies {
		b.countCorruptRead(i, err)
		b.Fail(i, err)
		return
	}
	it.cause = err
	b.c.Pipeline.Count.Refills.Add(1)
	b.toRead = append(b.toRead, i)
}

// Recheck verifies the slot of a block whose copy failed its check, to find out whether the slot or
// the copy is corrupt.
func (b *Blocks) Recheck(i int32, err error) {
	it := &b.Items[i]
	it.cause = err
	it.badCopies++
	if b.stopped {
		b.Fail(i, context.Cause(b.o.Task.Context()))
		return
	}
	b.enqueueVerify(i)
}

// handleBadCopy counts a copy that failed its check although its slot is correct. It reports
// whether to copy the block again; otherwise the block has failed.
func (b *Blocks) handleBadCopy(i int32) bool {
	it := &b.Items[i]
	b.c.Pipeline.CountBadCopy(b.Keys[i], it.cause)
	if it.badCopies < maxCopies {
		return true
	}
	b.Fail(i, fmt.Errorf("%d copies to the page were wrong, the block in the %s is correct: %w", it.badCopies, b.c.Pipeline.Cache.Name(), errdefs.ErrCorrupt))
	return false
}

// More reports whether blocks are left to be looked up or read. If there are none, it waits for one
// that another task fills. No block has a slot.
func (b *Blocks) More() bool {
	if len(b.Todo)+len(b.toRead) > 0 {
		return true
	}
	if len(b.filling) == 0 {
		return false
	}
	i := b.filling[0]
	slot, err := b.c.Pipeline.Open(b.o.Task.Context(), b.Keys[i])
	it := &b.Items[i]
	// The other blocks may be ready by now: look them up together.
	b.Todo = append(b.Todo, b.filling[1:]...)
	b.filling = b.filling[:0]
	switch {
	case err == nil:
		b.setCached(i, slot)
	case pipeline.IsNotFound(err) && it.tries < b.c.Pipeline.MaxTries && b.o.Task.Context().Err() == nil:
		if pipeline.IsCorrupt(err) { // makes the tier below set its copy aside
			it.cause = err
		}
		it.tries++
		b.c.Pipeline.Count.Retries.Add(1)
		b.toRead = append(b.toRead, i)
	default:
		b.Fail(i, err)
	}
	return true
}

// countCorruptRead counts a corrupt read of block i if the copy in its tier is correct. If the
// tier's copy was corrupt, the tier has counted it.
func (b *Blocks) countCorruptRead(i int32, cause error) {
	it := &b.Items[i]
	if it.corruptTier == 0 {
		return
	}
	b.c.Pipeline.CountCorrupt(b.c.Pipeline.TierName(it.corruptTier), b.Keys[i], fmt.Errorf("wrong bytes were read: %w: %w", errdefs.ErrCorrupt, cause))
	it.corruptTier = 0
}

// DropSlot unpins the slot of a block.
func (b *Blocks) DropSlot(it *Item) {
	it.Slot.Release()
	it.Slot = nil
	b.open--
}

// Fail sets the error of block i.
func (b *Blocks) Fail(i int32, err error) {
	it := &b.Items[i]
	if it.Slot != nil {
		b.DropSlot(it)
	}
	if !pipeline.IsCorrupt(err) && !pipeline.IsNotFound(err) { // otherwise it was counted
		b.countCorruptRead(i, it.cause)
	}
	if it.cause != nil {
		err = fmt.Errorf("%w; then: %w", it.cause, err)
	}
	b.o.Task.SetErr(i, b.blockError(i, it.Touched, err))
	b.c.Pipeline.Count.LoadErrors.Add(1)
	if !b.o.Leased && pipeline.IsNotFound(err) {
		b.c.Pipeline.Count.Misses.Add(1)
	}
	if b.o.Layers == nil {
		return
	}
	for _, k := range b.c.Pipeline.Map.Layers[b.Groups[i]] {
		if k >= int(it.FirstLayer) {
			b.o.Layers.Complete(k, 1)
		}
	}
}

// blockError returns the error of block i.
func (b *Blocks) blockError(i int32, undefined bool, err error) task.BlockError {
	ref := &b.Refs.Refs[i]
	return task.BlockError{Op: "load", Key: ref.Key, Page: ref.Page, Undefined: undefined, Err: err}
}

// FailExpired fails all blocks of an expired load. No block is being copied.
func (b *Blocks) FailExpired() {
	succeeded, err := b.o.Task.Finish()
	for _, i := range succeeded {
		b.o.Task.SetErr(i, b.blockError(i, true, err))
		b.c.Pipeline.Count.LoadErrors.Add(1)
	}
}
