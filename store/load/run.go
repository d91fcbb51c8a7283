package load

import (
	"context"

	"github.com/kvlane/kvlane/store/task"
)

// runner implements pool.Runner for a task.
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

// oldestDone returns the Done channel of the oldest unprocessed ticket, or nil.
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

// finish ends the load. All blocks have results.
func (t *Task) finish() {
	t.elapsed = t.p.Clock.Now().Sub(t.startedAt)
	t.p.Count.LoadTimes.Observe(t.elapsed)
	if t.cacheBytes+t.lowerBytes > 0 {
		t.l.Admission.Loaded(t.cacheBytes, t.lowerBytes, t.elapsed)
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

// failExpired fails all blocks of an expired load. No block is being copied.
func (t *Task) failExpired() {
	succeeded, err := t.base.Finish()
	for _, i := range succeeded {
		t.base.SetErr(i, t.blockError(i, true, err))
		t.p.Count.LoadErrors.Add(1)
	}
}
