package dump

import (
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/store/task"
	"github.com/kvlane/kvlane/tier"
)

// runner lets the scheduler run a task.
type runner Task

// Run implements pool.Runner.
func (r *runner) Run() { (*Task)(r).run() }

// run copies the blocks and publishes them. Writers complete the task.
func (t *Task) run() {
	if err := t.prepare(); err != nil {
		t.failTodo(err)
	} else {
		t.copyTodo()
		t.waitForOthers()
	}
	close(t.published)
	if t.base.Blocks() == 0 {
		t.setSourceFree()
	}
	t.mu.Lock()
	t.running = false
	last := t.blocksLeft == 0
	t.mu.Unlock()
	if last {
		t.finish()
	}
}

// prepare waits for Options.After and skips the blocks that are durable.
func (t *Task) prepare() error {
	t.after, t.deviceDeps = t.d.Env.Stream.SplitDeps(t.base.Context(), t.after)
	t.depsResolved = !t.layerwise && len(t.deviceDeps) == 0
	if err := t.base.WaitAll(t.after); err != nil {
		return err
	}
	t.skipDurable()
	return nil
}

// copyTodo copies the blocks of todo and publishes them.
func (t *Task) copyTodo() {
	t.copyHeld()
	t.copyBlocks()
}

// skipDurable removes the blocks that all durable tiers have from todo.
func (t *Task) skipDurable() {
	sc := t.sc
	sc.kept, sc.durable = sc.kept[:0], sc.durable[:0]
	for range sc.Keys {
		sc.kept = append(sc.kept, false)
		sc.durable = append(sc.durable, true)
	}
	tiers := t.p.Durable
	if len(tiers) == 0 {
		tiers = []tier.Tier{t.p.Cache}
	}
	for _, tr := range tiers {
		clear(sc.kept)
		if k, ok := tr.(tier.Keeper); ok {
			if err := k.Kept(t.base.Context(), sc.Keys, sc.kept); err != nil {
				clear(sc.kept) // storing a block again is safe; skipping a missing one is not
				if t.base.Context().Err() == nil && len(sc.Keys) > 0 {
					t.p.Index.FellBack(tr, sc.Keys[0], err)
				}
			}
		}
		for i, kept := range sc.kept {
			sc.durable[i] = sc.durable[i] && kept
		}
	}
	n := 0
	for _, i := range sc.todo {
		if sc.durable[i] {
			t.skip(i)
			t.resolveBlock(i, nil)
			continue
		}
		sc.todo[n] = i
		n++
	}
	sc.todo = sc.todo[:n]
}

// skip notes that block i is stored without a copy by this dump.
func (t *Task) skip(i int32) {
	t.sc.items[i].skipped = true
	t.releaseSources(1)
}

// releaseSources counts n blocks whose pages are no longer read.
func (t *Task) releaseSources(n int) {
	if t.sourceLeft -= n; t.sourceLeft == 0 && n > 0 {
		t.setSourceFree()
	}
}

// setSourceFree reports that no page is read any more.
func (t *Task) setSourceFree() {
	t.p.ObserveSince(&t.p.Count.FreeTimes, t.startedAt)
	close(t.sourceFree)
}

// failBlock sets the result of block i, whose page is no longer read.
func (t *Task) failBlock(i int32, err error) {
	t.releaseSources(1)
	t.resolveBlock(i, err)
}

// failTodo fails all blocks of todo.
func (t *Task) failTodo(err error) {
	for _, i := range t.sc.todo {
		t.failBlock(i, err)
	}
	t.sc.todo = t.sc.todo[:0]
}

// resolveBlock sets the result of block i. The last block ends the task, unless run goes on.
func (t *Task) resolveBlock(i int32, err error) {
	skipped := t.sc.items[i].skipped
	c := &t.p.Count
	switch {
	case err != nil:
		c.DumpErrors.Add(1)
		ref := &t.sc.Refs.Refs[i]
		t.base.SetErr(i, task.BlockError{Op: "dump", Key: ref.Key, Page: ref.Page, Err: err})
	case skipped:
		c.Skipped.Add(1)
	default:
		c.Dumped.Add(1)
	}
	t.mu.Lock()
	t.blocksLeft--
	if err == nil && skipped {
		t.skipped++
	}
	last := t.blocksLeft == 0 && !t.running
	t.mu.Unlock()
	if last {
		t.finish()
	}
}

// finish ends the task.
func (t *Task) finish() {
	t.d.putScratch(t.sc)
	t.sc = nil
	t.p.ObserveSince(&t.p.Count.DurableTimes, t.startedAt)
	t.base.CancelCause(nil)
	t.base.SetDone()
	t.d.Scheduler.End(task.Dump)
}

// waitForOthers waits, one after another, for the blocks that other tasks fill, and copies those
// that fail. The task holds no slots but those that writers are about to release.
func (t *Task) waitForOthers() {
	sc := t.sc
	for len(sc.filling) > 0 {
		i := sc.filling[0]
		sc.filling = append(sc.filling[:0], sc.filling[1:]...)
		it := &sc.items[i]
		slot, err := t.p.Open(t.base.Context(), sc.Keys[i])
		switch {
		case err == nil:
			t.skip(i)
			t.enqueueWrite(i, slot)
		case pipeline.IsNotFound(err) && it.tries < t.p.MaxTries && t.base.Context().Err() == nil:
			it.tries++
			t.p.Count.Retries.Add(1)
			sc.todo = append(sc.todo, i)
			t.copyTodo()
		default:
			t.failBlock(i, err)
		}
	}
}
