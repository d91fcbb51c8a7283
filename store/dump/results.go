package dump

import (
	"time"

	"github.com/kvlane/kvlane/store/task"
	"github.com/kvlane/kvlane/stream"
)

// owner implements batch.Owner for a task.
type owner Task

// BatchResolved implements batch.Owner.
func (t *owner) BatchResolved(c stream.Completion, submittedAt time.Time, err error) {
	t.base.AddCompletion(t.d.Env.Stream.Name(), &t.p.Count.DumpPaths, c, submittedAt, err)
}

// skip marks block i as stored without a copy by this dump.
func (t *Task) skip(i int32) {
	t.sc.items[i].skipped = true
	t.releaseSources(1)
}

// releaseSources records that the pages of n blocks are no longer read.
func (t *Task) releaseSources(n int) {
	if t.sourceLeft -= n; t.sourceLeft == 0 && n > 0 {
		t.setSourceFree()
	}
}

// setSourceFree reports that no page is read any longer.
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

// resolveBlock sets the result of block i. The last block ends the task, unless run has not
// returned.
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

// finish ends the task. All blocks have results.
func (t *Task) finish() {
	if t.direct {
		close(t.published)
	}
	blocks := len(t.sc.Refs.Refs)
	t.d.putScratch(t.sc)
	t.sc = nil
	t.p.ObserveSince(&t.p.Count.DurableTimes, t.startedAt)
	t.base.SetDone()
	t.p.HasEnded("dump", blocks, t.startedAt, t.base.Err)
	t.d.Scheduler.End(task.Dump)
}
