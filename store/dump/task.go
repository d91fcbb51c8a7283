package dump

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store/batch"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/store/pool"
	"github.com/kvlane/kvlane/store/task"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier"
)

// Config configures a Dumper.
type Config struct {
	Pipeline     *pipeline.Pipeline
	Scheduler    *task.Scheduler
	Env          *batch.Env // of copies to slots
	Writers      int        // goroutines that write to the tiers below
	WaitingSlots int64      // slots for dumps that wait for the client: see package store
	// BatchBytes is that of store.Config. PartBytes is the size of a part.
	BatchBytes, PartBytes int64
}

// Dumper starts dumps. Safe for concurrent use.
type Dumper struct {
	Config
	batchBlocks   int          // blocks of a batch, at most
	waitingSlots  waitingSlots // of Config.WaitingSlots
	waitingDirect waitingSlots // of pipeline.Direct.Dumps
	writers       *pool.Pool
	direct        tier.DirectWriter // the durable tier, if dumps pass through device memory; or nil
	notDirect     error             // why direct is nil, if slots of device memory are there
	hostSlot      chan struct{}     // token of pipeline.Direct.HostSlot
	full          []atomic.Bool     // by durable tier: the last write waited for space in vain
	scratch       sync.Pool
}

// Backlog returns the number of blocks that wait for a writer.
func (d *Dumper) Backlog() int { return d.writers.Backlog() }

// Options are options of a dump.
type Options struct {
	// Layerwise starts each shard by Task.SubmitShard, in any order, instead of all at once.
	Layerwise bool
	// After holds dependencies that must resolve before the pages are read. The wait ends only with
	// Cancel, or Config.LeaseMax after the store began to close: then the dump fails with
	// ErrClosed.
	//
	// The dump's stream waits for a stream.Recorded on the device, if it can. The host then waits
	// for nothing, and the copies start when the work is done. But later batches of that stream
	// wait as well, also those of other dumps, and the dump holds slots meanwhile. If the work is
	// not done within Config.LeaseMax, the dump fails with ErrExpired, and its slots are released
	// when the work is done. If the stream cannot wait, as with NICs, the host waits.
	After []mem.Dependency
	// Before is the block before the first ref's in the prompt, or zero. It makes the tiers evict
	// the end of a prompt before its beginning, and has no other effect. After a LeasePrefix of the
	// whole prompt it may be omitted.
	Before block.Key
}

// Task is a running dump. It completes twice: SourceFree, then Durable. All methods are safe for
// concurrent use. It need not be waited for, but SubmitShard must be called for all shards of a
// layerwise dump.
type Task struct {
	base *task.Task
	d    *Dumper
	p    *pipeline.Pipeline

	startedAt  time.Time
	layerwise  bool
	copySums   bool // the stream sums copies
	direct     bool // blocks pass through slots of device memory
	sourceFree chan struct{}
	published  chan struct{}
	shards     chan submission // layerwise: has space for every shard

	mu         sync.Mutex
	submitted  []bool    // layerwise: shards of SubmitShard
	leftOut    []LeftOut // by durable tier, once one was left out
	blocksLeft int       // blocks without a result
	running    bool      // run has not returned
	skipped    int

	// The task's goroutine owns the rest. A writer owns the slot of an item while it writes it.
	after        []mem.Dependency
	deviceDeps   []stream.Recorded // of after: those that the stream waits for
	sc           *scratch
	sourceLeft   int          // blocks whose page may still be read
	groups       []*group     // being copied or sealed
	submissions  []submission // layerwise: in the order of SubmitShard
	depsResolved bool         // the task no longer waits for the client
}

// submission is a shard whose pages may be read once its dependencies have resolved.
type submission struct {
	shard      int
	after      []mem.Dependency
	deviceDeps []stream.Recorded // of after: those that the stream waits for
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
	// The cause of an ended task is context.Canceled: it accepts late shards, without effect.
	if cause := context.Cause(t.base.Context()); cause != nil && !errors.Is(cause, context.Canceled) {
		return fail(cause)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.submitted[shard] {
		return fail(errdefs.ErrExists)
	}
	t.submitted[shard] = true
	t.shards <- submission{shard: shard, after: after} // has space: each shard is sent once
	return nil
}

// Done returns a channel that is closed when the dump has ended: every block has its result, and
// the task's pages and slots are no longer accessed.
func (t *Task) Done() <-chan struct{} { return t.base.Done() }

// Cancel cancels the dump. It does not wait: the dump ends when the hardware has stopped, and
// unfinished blocks fail with ErrCanceled.
func (t *Task) Cancel() { t.base.Cancel() }

// Errs returns one error for each block, each a *BlockError, nil for those that succeeded. Before
// Done is closed it returns nil.
func (t *Task) Errs() []error { return t.base.Errs() }

// Paths returns the completions of the batches that have resolved so far, in that order.
func (t *Task) Paths() []stream.Completion { return t.base.Completions() }

// SourceFree waits until the dump no longer reads pages, and returns nil. If ctx ends first, it
// returns the cause of ctx. Durable reports whether the blocks were stored.
func (t *Task) SourceFree(ctx context.Context) error { return task.WaitClosed(ctx, t.sourceFree) }

// Published waits until lookups find every block that has not failed, and returns nil. If ctx ends
// first, it returns the cause of ctx. Durable reports whether the blocks were stored.
func (t *Task) Published(ctx context.Context) error { return task.WaitClosed(ctx, t.published) }

// LeftOut is a durable tier that did not store all blocks of a dump.
type LeftOut struct {
	Tier   string
	Blocks int   // that it did not store
	Cause  error // why it did not store the first of them
}

// LeftOut returns the tiers that were left out for blocks so far: they were full, failed or were
// gone. These blocks are durable in the other tiers. They have failed if there is none.
func (t *Task) LeftOut() []LeftOut {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(t.leftOut), func(l LeftOut) bool { return l.Blocks == 0 })
}

// addLeftOut notes that durable tier n did not store a block.
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

// Durable waits until every block is in every durable tier that was not left out (LeftOut), or has
// failed, and returns the errors of the blocks, joined. If ctx ends first, it returns the cause of ctx and the reasons of the
// delay. A block waits for up to Config.WaitMax for space in a tier, and for as long as the system
// takes to write it.
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

// Skipped returns the number of blocks that the dump did not copy, because the store had them or
// another dump stored them meanwhile. Only durable blocks count.
func (t *Task) Skipped() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.skipped
}
