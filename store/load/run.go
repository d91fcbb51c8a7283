package load

import (
	"context"

	"github.com/kvlane/kvlane/store/batch"
	"github.com/kvlane/kvlane/store/task"
)

// Limits of one load.
const (
	firstBlocks = 128 // blocks of the first batch, so that copying starts early
	maxInFlight = 2   // groups in the stream: one is copied while the next is built
)

// runner lets the scheduler run a task.
type runner Task

// Run implements pool.Runner.
func (r *runner) Run() { (*Task)(r).run() }

// run runs the load until it has ended.
func (t *Task) run() {
	t.waitDependencies()
	canceled := t.base.Context().Done()
	for {
		if canceled != nil && t.base.Context().Err() != nil {
			canceled = nil
			t.stop()
		}
		t.lookUp(0)
		t.startReads()
		t.startGroups()
		if len(t.sc.todo) > 0 && t.inFlight < maxInFlight && t.copiesUnchecked() {
			continue // look up further blocks while the first ones are copied
		}
		if t.verifying+t.reading == 0 && len(t.groups) == 0 && len(t.sc.ready) == 0 {
			if len(t.sc.todo) == 0 && len(t.sc.toRead) == 0 && !t.waitForOther() {
				break
			}
			continue
		}
		select {
		case r := <-t.sc.results:
			t.handleResult(r)
			t.handleResults()
		case <-t.oldestDone():
			t.advance()
		case <-t.sc.buffers.Wake():
			t.advance()
		case <-canceled:
		}
	}
	t.finish()
}

// waitDependencies waits for Options.After. The wait does not count as load time. If it fails, all
// blocks fail.
func (t *Task) waitDependencies() {
	if len(t.after) == 0 {
		return
	}
	if err := t.base.WaitAll(t.after); err != nil {
		for _, i := range t.sc.todo {
			t.failBlock(i, err)
		}
		t.sc.todo = t.sc.todo[:0]
	}
	t.after, t.startedAt = nil, t.p.Clock.Now()
}

// oldestDone returns the Done channel of the oldest ticket that is not processed, or nil.
func (t *Task) oldestDone() <-chan struct{} {
	for _, g := range t.groups {
		if c := g.OldestDone(); c != nil {
			return c
		}
	}
	return nil
}

// handleResults processes all available results, so that their blocks share a batch.
func (t *Task) handleResults() {
	for {
		select {
		case r := <-t.sc.results:
			t.handleResult(r)
		default:
			return
		}
	}
}

// stop handles the end of the task's context: it fails the blocks that are not being copied and
// cancels the batches.
func (t *Task) stop() {
	t.stopped = true
	cause := context.Cause(t.base.Context())
	sc := t.sc
	for _, list := range []*[]int32{&sc.todo, &sc.toRead, &sc.filling, &sc.ready} {
		for _, i := range *list {
			t.failBlock(i, cause)
		}
		*list = (*list)[:0]
	}
	for _, g := range t.groups {
		g.Cancel()
	}
}

// startGroups starts copies of ready blocks, unless enough groups are in flight or more blocks are
// about to become ready.
func (t *Task) startGroups() {
	for len(t.sc.ready) > 0 && t.inFlight < maxInFlight && len(t.groups) < 2*maxInFlight {
		n := min(len(t.sc.ready), t.l.batchBlocks)
		if t.layerwise {
			// One group for all, so that the first layer of each block precedes the last layer of
			// the others.
			n = t.gatherReady(t.sc.items[t.sc.ready[0]].firstLayer)
		}
		if t.verifying > 0 && (t.layerwise || n < t.l.batchBlocks) {
			return
		}
		t.startGroup(n)
	}
}

// gatherReady moves the ready blocks that need layers from first on to the front, and counts them.
// Blocks that are copied again need only layers that were not reported.
func (t *Task) gatherReady(first int32) int {
	ready, items := t.sc.ready, t.sc.items
	n := 0
	for k := range ready {
		if items[ready[k]].firstLayer == first {
			ready[n], ready[k] = ready[k], ready[n]
			n++
		}
	}
	return n
}

// finish ends the load.
func (t *Task) finish() {
	took := t.p.Clock.Now().Sub(t.startedAt)
	t.p.Count.LoadTimes.Observe(took)
	if t.cacheBytes+t.lowerBytes > 0 {
		t.l.Admission.Loaded(t.cacheBytes, t.lowerBytes, took)
	}
	t.failExpired()
	t.layersDone.Advance(t.p.Map.NumLayers())
	if t.lease != nil {
		t.lease.End()
	}
	t.base.SetDone()
	t.progress.end(t.base.Err())
	t.base.CancelCause(nil)
	t.l.putScratch(t.sc)
	t.sc = nil
	t.l.Scheduler.End(task.Load)
}

// failExpired fails all blocks of a load that has expired. Nothing is being copied.
func (t *Task) failExpired() {
	succeeded, err := t.base.Finish()
	for _, i := range succeeded {
		t.base.SetErr(i, t.blockError(i, true, err))
		t.p.Count.LoadErrors.Add(1)
	}
}

// blockError returns the error of block i.
func (t *Task) blockError(i int32, undefined bool, err error) task.BlockError {
	ref := &t.sc.Refs.Refs[i]
	return task.BlockError{Op: "load", Key: ref.Key, Page: ref.Page, Undefined: undefined, Err: err}
}

// span returns positions from to to-1.
func span(from, to int) batch.Span { return batch.Span{From: from, To: to} }
