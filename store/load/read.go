package load

import (
	"context"
	"fmt"
	"runtime"
	"slices"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/tier"
)

const maxCopies = 3 // copies of a block before it fails

// lookUp opens the blocks of todo that are in the cache, and moves the others to toRead and
// filling. It does not block. groupBlocks is the number of blocks of the group that the opened
// blocks will join.
func (t *Task) lookUp(groupBlocks int) {
	sc := t.sc
	n := len(sc.todo)
	switch {
	case !t.copiesUnchecked():
		n = min(n, windowBlocks-t.open)
	case t.layerwise:
		if piece := min(max(groupBlocks, t.l.pieceBlocks), 4*t.l.pieceBlocks); n >= 2*piece {
			n = piece // so that copying starts early
		}
	case t.inFlight == 0:
		n = min(n, firstBlocks)
	}
	if n <= 0 {
		return
	}
	sc.slots, sc.states = slices.Grow(sc.slots[:0], n)[:n], slices.Grow(sc.states[:0], n)[:n]
	err := t.p.Cache.OpenReady(t.base.Context(), sc.KeysOf(sc.todo[:n]), sc.slots, sc.states)
	for k, i := range sc.todo[:n] {
		switch {
		case err != nil:
			t.failBlock(i, err)
		case sc.slots[k] != nil:
			t.setCached(i, sc.slots[k])
		case sc.states[k] == tier.Filling:
			sc.filling = append(sc.filling, i)
		default:
			sc.toRead = append(sc.toRead, i)
		}
	}
	clear(sc.slots)
	sc.todo = append(sc.todo[:0], sc.todo[n:]...)
}

// setCached sets the slot of a block that was found in the cache.
func (t *Task) setCached(i int32, slot tier.Slot) {
	it := &t.sc.items[i]
	t.countCorruptRead(i, it.cause)
	it.slot, it.tier, it.checked = slot, 0, false
	t.open++
	if t.copiesUnchecked() && (t.p.Verify == pipeline.VerifyFill || slot.Sums() != nil) {
		t.sc.ready = append(t.sc.ready, i)
		return
	}
	t.enqueueVerify(i)
}

// fetchJob and verifyJob are jobs of a task in the pools of readers and checkers.
type (
	fetchJob  Task
	verifyJob Task
)

// yieldBytes is the size of loads above which readers yield after each block. Yielding costs
// smaller loads more batches.
const yieldBytes = 16 << 20

// Run implements pool.Job: it reads block i from a tier below. In large loads it then yields, so
// that the task copies the block before the next one is read from the page cache.
func (j *fetchJob) Run(i int32) {
	t := (*Task)(j)
	if int64(len(t.sc.Keys))*t.p.Map.Formats[t.sc.Groups[i]].Layout.ImageBytes() > yieldBytes {
		defer runtime.Gosched()
	}
	it := &t.sc.items[i]
	var err error
	it.slot, it.tier, err = t.p.Fetch(t.base.Context(), t.sc.Keys[i:i+1],
		pipeline.FetchOptions{Wait: true, Leased: t.lease != nil, Unverified: t.unverifiedSlot(i), Direct: t.directBlock(i)})
	t.sc.results <- result{true, i, err}
}

// Run implements pool.Job: it verifies the slot of block i.
func (j *verifyJob) Run(i int32) {
	t := (*Task)(j)
	image := t.p.Map.Image(t.sc.items[i].slot.Extent(), t.sc.Groups[i])
	err := t.p.Map.Formats[t.sc.Groups[i]].Verify(image.Bytes(), t.sc.Keys[i])
	t.sc.results <- result{false, i, err}
}

// enqueueVerify starts a job that verifies the slot of block i.
func (t *Task) enqueueVerify(i int32) {
	t.verifying++
	t.l.Env.Checks.Push((*verifyJob)(t), i)
}

// startReads starts jobs for blocks that are not in the cache.
func (t *Task) startReads() {
	sc := t.sc
	n := min(len(sc.toRead), windowReads-t.reading)
	for _, i := range sc.toRead[:n] {
		t.reading++
		t.open++
		t.l.Readers.Push((*fetchJob)(t), i)
	}
	sc.toRead = append(sc.toRead[:0], sc.toRead[n:]...)
}

// unverifiedSlot returns memory for reading block i without verification, or nil if the block must
// be verified. After a failure of the block the tier must verify it, so that it can set a corrupt
// copy aside.
func (t *Task) unverifiedSlot(i int32) *pipeline.Unverified {
	it := &t.sc.items[i]
	if !t.unverified || it.badCopies > 0 || it.cause != nil {
		return nil
	}
	u := &t.sc.unverified[i]
	u.Reset(t.sumsOf(i))
	return u
}

// isUnverified reports whether block i was read without verification and has not been verified
// since.
func (t *Task) isUnverified(i int32) bool {
	_, ok := t.sc.items[i].slot.(*pipeline.Unverified)
	return ok
}

// publish publishes block i if it was read without verification. After an error the slot must not
// be used.
func (t *Task) publish(i int32) error {
	it := &t.sc.items[i]
	u, ok := it.slot.(*pipeline.Unverified)
	if !ok {
		return nil
	}
	slot, err := u.Publish()
	if err != nil {
		t.p.Index.FellBack(t.p.Cache, t.sc.Keys[i], err)
		return err
	}
	it.slot = slot
	return nil
}

// handleResult processes the result of a job.
func (t *Task) handleResult(r result) {
	if r.fetched {
		t.handleFetched(r.i, r.err)
	} else {
		t.handleVerified(r.i, r.err)
	}
}

// handleVerified processes a block whose slot was verified.
func (t *Task) handleVerified(i int32, err error) {
	t.verifying--
	if err != nil {
		t.handleCorruptSlot(i, err)
		return
	}
	it := &t.sc.items[i]
	err = t.publish(i)
	if it.badCopies > 0 && !t.handleBadCopy(i) {
		return
	}
	if err != nil {
		it.badCopies++ // makes the next read verify the block before it is published
		t.dropSlot(it)
		t.retry(i, err)
		return
	}
	it.checked = true
	t.setReady(i)
}

// handleFetched processes the result of reading a block from a tier below.
func (t *Task) handleFetched(i int32, err error) {
	t.reading--
	it := &t.sc.items[i]
	t.noteDirect(i)
	switch {
	case err == nil && t.isDirect(i):
		t.setReady(i)
		return
	case err == nil && t.isUnverified(i):
		t.setUnverified(i)
		return
	}
	if err == nil {
		if it.tier != it.corruptTier { // that tier's copy is corrupt, and the tier has counted it
			it.corruptTier = 0
		}
		t.countCorruptRead(i, it.cause)
	}
	it.checked = err == nil
	switch {
	case err == nil:
		t.setReady(i)
	case pipeline.IsExists(err) && !t.stopped:
		t.open--
		t.sc.filling = append(t.sc.filling, i)
	default:
		t.open--
		t.failBlock(i, err)
	}
}

// setReady makes block i ready, or fails it if the task has stopped.
func (t *Task) setReady(i int32) {
	if t.stopped {
		t.failBlock(i, context.Cause(t.base.Context()))
		return
	}
	t.sc.ready = append(t.sc.ready, i)
}

// setUnverified makes an unverified block ready if its copy can be verified. Otherwise the CPU
// verifies the block first.
func (t *Task) setUnverified(i int32) {
	it := &t.sc.items[i]
	if !t.stopped && it.slot.Sums() == nil {
		t.enqueueVerify(i)
		return
	}
	it.checked = false
	t.setReady(i)
}

// handleCorruptSlot drops a slot that failed its check and reads the block again. If the block was
// read without verification, either the tier's copy or the read was corrupt. The next read shows
// which.
func (t *Task) handleCorruptSlot(i int32, err error) {
	it := &t.sc.items[i]
	if t.isUnverified(i) {
		it.corruptTier = it.tier
	} else {
		t.p.CountCorrupt(t.p.Cache.Name(), t.sc.Keys[i], err)
	}
	it.slot.Corrupt(err)
	t.dropSlot(it)
	t.retry(i, err)
}

// retry reads block i again after it failed with err and lost its slot. If no retry is possible,
// the block fails.
func (t *Task) retry(i int32, err error) {
	it := &t.sc.items[i]
	if len(t.p.Lower) == 0 || t.stopped || it.badCopies >= maxCopies {
		t.countCorruptRead(i, err)
		t.failBlock(i, err)
		return
	}
	it.cause = err
	t.p.Count.Refills.Add(1)
	t.sc.toRead = append(t.sc.toRead, i)
}

// recheck verifies the slot of a block whose copy failed its check, to find out whether the slot or
// the copy is corrupt.
func (t *Task) recheck(i int32, err error) {
	it := &t.sc.items[i]
	it.cause = err
	it.badCopies++
	if t.stopped {
		t.failBlock(i, context.Cause(t.base.Context()))
		return
	}
	t.enqueueVerify(i)
}

// handleBadCopy counts a copy that failed its check although its slot is correct. It reports
// whether to copy the block again; otherwise the block has failed.
func (t *Task) handleBadCopy(i int32) bool {
	it := &t.sc.items[i]
	t.p.CountBadCopy(t.sc.Keys[i], it.cause)
	if it.badCopies < maxCopies {
		return true
	}
	t.failBlock(i, fmt.Errorf("%d copies to the page were wrong, the block in the %s is correct: %w", it.badCopies, t.p.Cache.Name(), errdefs.ErrCorrupt))
	return false
}

// waitForOther waits for one block that another task fills, and reports whether there was one. The
// task holds no slots.
func (t *Task) waitForOther() bool {
	sc := t.sc
	if len(sc.filling) == 0 {
		return false
	}
	i := sc.filling[0]
	slot, err := t.p.Open(t.base.Context(), sc.Keys[i])
	it := &sc.items[i]
	// The other blocks may be ready by now: look them up together.
	sc.todo = append(sc.todo, sc.filling[1:]...)
	sc.filling = sc.filling[:0]
	switch {
	case err == nil:
		t.setCached(i, slot)
	case pipeline.IsNotFound(err) && it.tries < t.p.MaxTries && t.base.Context().Err() == nil:
		if pipeline.IsCorrupt(err) { // makes the tier below set its copy aside
			it.cause = err
		}
		it.tries++
		t.p.Count.Retries.Add(1)
		sc.toRead = append(sc.toRead, i)
	default:
		t.failBlock(i, err)
	}
	return true
}
