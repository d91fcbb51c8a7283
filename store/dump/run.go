package dump

import (
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/tier"
)

// runner implements pool.Runner for a task.
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
	if !t.direct { // direct blocks are published when the tier has stored them
		close(t.published)
	}
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

// prepare waits for Options.After and skips blocks that are already durable.
func (t *Task) prepare() error {
	t.after, t.deviceDeps = t.d.Env.Stream.SplitDeps(t.base.Context(), t.after)
	t.depsResolved = !t.layerwise && len(t.deviceDeps) == 0
	t.direct = t.d.direct != nil && t.copySums
	if !t.direct {
		t.noteNotDirect()
	}
	if err := t.base.WaitAll(t.after); err != nil {
		return err
	}
	t.skipDurable()
	return nil
}

// copyTodo copies the blocks of todo and publishes them.
func (t *Task) copyTodo() {
	t.copyWaiting()
	t.copyBlocks()
}

// skipDurable removes from todo the blocks that all durable tiers have.
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

// waitForOthers waits for the blocks that other tasks fill, one after another, and copies those
// that fail. The task holds no slots, except those that writers are about to release.
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
