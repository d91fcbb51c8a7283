package dump

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store/batch"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/store/pool"
	"github.com/kvlane/kvlane/store/task"
	"github.com/kvlane/kvlane/store/write"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier"
)

// Config configures a Dumper.
type Config struct {
	Pipeline  *pipeline.Pipeline
	Scheduler *task.Scheduler
	Env       *batch.Env // of copies to slots
	// Loads has the stream of loads. It copies headers to slots, because Env.Stream may wait for
	// work of the host program.
	Loads        *batch.Env
	Writers      int   // goroutines that write to the tiers below
	WaitingSlots int64 // slots for dumps that wait for the host program: see package store
	// BatchBytes is that of store.Config. PartBytes is the size of a part.
	BatchBytes, PartBytes int64
}

// Dumper starts dumps. Safe for concurrent use.
type Dumper struct {
	Config
	batchBlocks   int          // maximum number of blocks of a batch
	waitingSlots  waitingSlots // of Config.WaitingSlots
	waitingDirect waitingSlots // of pipeline.Direct.Dumps
	writers       *pool.Pool   // of calls of writer
	writer        *write.Writer
	scratch       sync.Pool
}

// Backlog returns the number of blocks that wait for a writer.
func (d *Dumper) Backlog() int { return d.writers.Backlog() }

// Options are options of a dump.
type Options struct {
	// Layerwise starts the shards one by one, by calls of Task.SubmitShard in any order.
	Layerwise bool
	// After lists dependencies that must resolve before the pages are read. Only Cancel ends the
	// wait, or Config.LeaseMax after the store began to close; the dump then fails with ErrClosed.
	//
	// If possible, the dump's stream waits for a stream.Recorded on the device. The host then does
	// not wait, and the copies start when the recorded work is done. However, later batches of that
	// stream wait as well, including those of other dumps, and the dump holds slots meanwhile. If
	// the work is not done within Config.LeaseMax, the dump fails with ErrExpired, and its slots
	// are released when the work is done. If the stream cannot wait, as with NICs, the host waits.
	After []mem.Dependency
	// Before is the key of the block before the first ref's in the prompt, or zero. Its only effect
	// is that tiers evict the end of a prompt before its beginning. After a LeasePrefix of the
	// whole prompt it may be omitted.
	Before block.Key
}

// Task is a running dump. It completes in two steps: SourceFree, then Durable. Waiting for them is
// optional, but SubmitShard must be called for all shards of a layerwise dump. All methods are safe
// for concurrent use.
type Task struct {
	*task.Handle
	base *task.Task
	d    *Dumper
	p    *pipeline.Pipeline

	startedAt  time.Time
	layerwise  bool
	copySums   bool // the stream computes sums of copies
	direct     bool // blocks pass through slots of device memory
	sourceFree chan struct{}
	published  chan struct{}
	shards     chan submission // layerwise: has space for every shard

	mu         sync.Mutex
	submitted  []bool    // layerwise: shards passed to SubmitShard
	leftOut    []LeftOut // by durable tier, once one was left out
	blocksLeft int       // blocks without a result
	running    bool      // run has not returned
	skipped    int

	// The fields below are owned by the task's goroutine. A writer owns the slot of an item while
	// it writes the slot.
	after        []mem.Dependency
	deviceDeps   []stream.Recorded // dependencies in after that the stream waits for
	sc           *scratch
	sourceLeft   int          // blocks whose page may still be read
	groups       []*group     // being copied or sealed
	submissions  []submission // layerwise: in the order of SubmitShard
	depsResolved bool         // the task no longer waits for the host program
}

// submission is a shard whose pages may be read once its dependencies have resolved.
type submission struct {
	shard      int
	after      []mem.Dependency
	deviceDeps []stream.Recorded // dependencies in after that the stream waits for
	resolved   bool
}

// SubmitShard declares that the pages of a shard may be read once all of after have resolved. A
// layerwise dump needs one call for each shard, in any order. If a call comes more than
// Config.LeaseMax after the one before it, or its dependencies take longer than that, the dump
// fails with ErrExpired, since it holds slots meanwhile. See Options.After for a stream.Recorded.
// SubmitShard does not block. Errors: ErrInvalid for a dump that is not layerwise or a shard that
// does not exist, ErrExists for a second call, ErrCanceled and others after the dump was canceled.
func (t *Task) SubmitShard(ctx context.Context, shard int, after ...mem.Dependency) error {
	n := t.p.Map.NumLayers()
	fail := func(err error) error { return fmt.Errorf("submit shard %d of %d: %w", shard, n, err) }
	if !t.layerwise {
		return fail(fmt.Errorf("the dump is not layerwise: %w", errdefs.ErrInvalid))
	}
	if shard < 0 || shard >= n {
		return fail(errdefs.ErrInvalid)
	}
	if ctx.Err() != nil {
		return fail(context.Cause(ctx))
	}
	// After a task has ended, the cause is context.Canceled. Late shards are then accepted without
	// effect.
	if cause := context.Cause(t.base.Context()); cause != nil && !errors.Is(cause, context.Canceled) {
		return fail(cause)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.submitted[shard] {
		return fail(errdefs.ErrExists)
	}
	t.submitted[shard] = true
	t.shards <- submission{shard: shard, after: after} // has space for each shard once
	return nil
}

// Paths returns the completions of the batches that have resolved so far, in order of resolution.
func (t *Task) Paths() []stream.Completion { return t.base.Completions() }

// SourceFree waits until the dump no longer reads pages, and returns nil. If ctx ends first, it
// returns the cause of ctx. It does not report failures of blocks: see Durable.
func (t *Task) SourceFree(ctx context.Context) error { return task.WaitClosed(ctx, t.sourceFree) }

// Published waits until lookups find every block that has not failed, and returns nil. If ctx ends
// first, it returns the cause of ctx. It does not report failures of blocks: see Durable.
func (t *Task) Published(ctx context.Context) error { return task.WaitClosed(ctx, t.published) }

// LeftOut is a durable tier that did not store all blocks of a dump.
type LeftOut struct {
	Tier   string
	Blocks int   // number of blocks that it did not store
	Cause  error // error of the first of these blocks
}

// LeftOut returns the tiers that have not stored all blocks so far, because they were full, failed
// or were missing. The blocks are durable if another tier has stored them, and have failed
// otherwise.
func (t *Task) LeftOut() []LeftOut {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(t.leftOut), func(l LeftOut) bool { return l.Blocks == 0 })
}

// addLeftOut records that durable tier n did not store a block.
func (t *Task) addLeftOut(n int, cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leftOut == nil {
		t.leftOut = make([]LeftOut, len(t.p.Durable))
	}
	l := &t.leftOut[n]
	if l.Blocks == 0 {
		l.Tier, l.Cause = t.p.Durable[n].Name(), cause
	}
	l.Blocks++
}

// Durable waits until every block has failed or is in every durable tier, except the tiers that
// LeftOut returns. It returns the errors of the blocks, joined. If ctx ends first, it returns the
// cause of ctx and the reasons of the delay. A block waits up to Config.WaitMax for space in a
// tier; the duration of a write is not bounded.
func (t *Task) Durable(ctx context.Context) error {
	err := t.base.Wait(ctx, t.base.Done())
	select {
	case <-t.base.Done():
		return err
	default:
		return t.delayError(err)
	}
}

// delayError adds the reasons why the dump is not durable yet.
func (t *Task) delayError(cause error) error {
	t.mu.Lock()
	left := t.blocksLeft
	t.mu.Unlock()
	errs := []error{fmt.Errorf("%d blocks are not durable yet, %d writes wait for a writer: %w", left, t.d.Backlog(), cause)}
	for _, tr := range t.p.Durable {
		st, ok := tr.(tier.Statter)
		if !ok {
			continue
		}
		stats := st.Stats()
		if stats.Waiting > 0 {
			errs = append(errs, fmt.Errorf("tier %s: %d writes wait for space", tr.Name(), stats.Waiting))
		}
		if err := errors.Join(stats.Paused, stats.Failure); err != nil {
			errs = append(errs, fmt.Errorf("tier %s: %w", tr.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// Skipped returns the number of durable blocks that the dump did not copy, because the store
// already had them or another dump has stored them meanwhile.
func (t *Task) Skipped() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.skipped
}

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
	t.direct = t.d.writer.NotDirect == nil && t.copySums
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
