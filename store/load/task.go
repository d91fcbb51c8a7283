package load

import (
	"context"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store/admission"
	"github.com/kvlane/kvlane/store/index"
	"github.com/kvlane/kvlane/store/layers"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/store/task"
	"github.com/kvlane/kvlane/stream"
)

// Task is a running load. Waiting for it is optional. All methods are safe for concurrent use.
type Task struct {
	*task.Handle
	base *task.Task
	l    *Loader
	p    *pipeline.Pipeline

	lease     *index.Lease
	after     []mem.Dependency // nil after they have resolved
	layerwise bool
	copySums  bool // the stream computes sums of copies, which verify the blocks
	layers    layers.Counter

	// The fields below are owned by the task's goroutine.
	sc          *scratch
	startedAt   time.Time
	elapsed     time.Duration   // set before Done is closed
	bytes       admission.Bytes // loaded
	groups      []*group        // being copied or checked
	inFlight    int             // groups being copied
	groupsArray [2]*group
}

// Elapsed returns the duration of the load, without its wait for Options.After. It returns zero
// before Done is closed.
func (t *Task) Elapsed() time.Duration {
	select {
	case <-t.Done():
		return t.elapsed
	default:
		return 0
	}
}

// Paths returns the completions of the batches that have resolved so far, in order of resolution.
func (t *Task) Paths() []stream.Completion { return t.base.Completions() }

// Wait waits until the load has ended and returns the errors of its blocks, joined. If ctx ends
// first, it returns the cause of ctx.
func (t *Task) Wait(ctx context.Context) error { return t.base.Wait(ctx, t.base.Done()) }

// WaitShard waits until every block has this shard and all earlier ones verified on its page, or
// has failed. It returns the errors of the blocks that have failed so far. Later copies do not
// write these shards again. Without Options.Layerwise it is Wait.
func (t *Task) WaitShard(ctx context.Context, shard int) error {
	if shard < 0 || shard >= t.p.Map.NumLayers() {
		return fmt.Errorf("wait for shard %d of %d: %w", shard, t.p.Map.NumLayers(), errdefs.ErrInvalid)
	}
	if !t.layerwise {
		return t.Wait(ctx)
	}
	return t.base.Wait(ctx, t.layers.Exceeded(shard))
}

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
		t.sc.StartReads()
		t.startGroups()
		if len(t.sc.Todo) > 0 && t.inFlight < maxInFlight && t.sc.CopiesUnchecked {
			continue // look up further blocks while the first ones are copied
		}
		if len(t.groups) == 0 && t.sc.Idle() {
			if !t.sc.More() {
				break
			}
			continue
		}
		select {
		case r := <-t.sc.Results:
			t.sc.Handle(r)
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
		t.sc.FailTodo(err)
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

// stop handles the end of the task's context: it fails the blocks that are not being copied and
// cancels the batches.
func (t *Task) stop() {
	t.sc.Stop()
	for _, g := range t.groups {
		g.Cancel()
	}
}

// finish ends the load. All blocks have results.
func (t *Task) finish() {
	t.elapsed = t.p.Clock.Now().Sub(t.startedAt)
	t.p.Count.LoadTimes.Observe(t.elapsed)
	if t.bytes != (admission.Bytes{}) {
		t.l.Admission.Loaded(t.bytes, t.elapsed)
	}
	t.sc.FailExpired()
	t.layers.CompleteAll()
	if t.lease != nil {
		t.lease.End()
	}
	t.base.SetDone()
	t.layers.End(t.base.Err())
	blocks := len(t.sc.Refs.Refs)
	t.l.putScratch(t.sc)
	t.sc = nil
	t.p.HasEnded("load", blocks, t.startedAt, t.base.Err)
	t.l.Scheduler.End(task.Load)
}
