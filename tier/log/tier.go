package log

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/internal/usage"
)

// Tier stores blocks in a log. It implements tier.Tier, tier.Keeper and tier.Statter. It is safe
// for concurrent use.
type Tier struct {
	cfg      Config
	clock    clockwork.Clock
	formats  block.Formats
	dir      dirfs.Dir
	lock     dirfs.File         // held while the tier is open; nil in a read-only tier
	id       [16]byte           // id of the directory
	removals *blockdir.Removals // nil in a read-only tier
	table    table
	segments segments
	cache    headerCache
	locks    *usage.KeyLocks
	pins     *blockdir.Pins
	pause    usage.Pause
	space    space
	count    counters
	buffers  sync.Pool // buffers of the length of the longest image (*[]byte)

	queue struct {
		mu    sync.Mutex
		recs  []*pending
		bytes int64 // total over recs
	}
	appenders     []*appender
	first, others chan *appender // pools of free appenders: the first one, and the others
	sealLock      chan struct{}  // holds an element during sealAll
	// makeLock holds an element while a segment is created, so that segments enter the log in the
	// order of their numbers.
	makeLock   chan struct{}
	epoch      uint64       // lowest number of a segment that this process has created
	groupCount atomic.Int64 // number of groups so far
	zeros      [page]byte
	// order is held while the blocks of a group are added to the index, so that groups are added
	// completely and in order. It guards last and the numbers of the appenders.
	order sync.Mutex
	last  uint32 // highest number of a segment so far

	synced    atomic.Pointer[position] // everything before this position is durable
	broken    atomic.Pointer[position] // a sync of bytes after this position failed
	unsynced  chan struct{}            // wakes the syncer for a sync
	dirty     atomic.Int64             // bytes written since the last request for writeback
	unstarted chan struct{}            // wakes the syncer to start writeback
	syncLock  chan struct{}            // holds an element during a sync

	written atomic.Int64 // bytes written since the last checkpoint
	// roundLock holds an element during a compaction or a checkpoint. It guards covered and
	// moveArena.
	roundLock  chan struct{}
	covered    map[uint32]int64 // by segment: length that the last checkpoint covers
	moveArena  []byte
	wake       chan struct{}
	background sync.WaitGroup

	places   atomic.Pointer[tier.Order]
	uses     atomic.Int64 // use count: see rank.go
	replayed replayed
	credit   atomic.Int64 // bytes stored, minus bytes moved to keep blocks

	damage      []finding // findings of opening the log
	unreadFiles []uint32  // numbers of files that opening left unchanged
	notes       []string

	ops     usage.OpCounter
	ctx     context.Context // canceled by Close
	cancel  context.CancelFunc
	failure atomic.Pointer[error]
}

type counters struct {
	blocks, bytes                                  atomic.Int64
	hits, misses, puts, evictions, corrupt, errors atomic.Int64
	readBytes, writtenBytes                        atomic.Int64
	retained, quarantined, swept, stuck, replaced  atomic.Int64
}

// errReadOnly is returned by changes of a tier that was opened read-only.
var errReadOnly = fmt.Errorf("the tier was opened for reading only: %w", errdefs.ErrReadOnly)

// Close refuses new operations, ends waits, waits for running reads and writes, makes blocks
// durable as the policy requires, and writes a checkpoint. If ctx ends first it returns ErrBusy.
// The memory of running Get or Put calls must then not be freed, and Close may be called again. Any
// other error describes a failed write; the tier is closed nevertheless.
func (t *Tier) Close(ctx context.Context) error {
	t.ops.Close()
	t.cancel()
	ended := make(chan struct{})
	go func() {
		t.background.Wait()
		close(ended)
	}()
	err := t.ops.Release(ctx, []<-chan struct{}{ended}, func() (err error) {
		if !t.cfg.ReadOnly {
			err = errors.Join(t.sealAll(), t.checkpoint())
			t.removals.Flush()
		}
		return errors.Join(err, t.closeFiles())
	})
	if err != nil {
		return fmt.Errorf("close log tier: %w", err)
	}
	return nil
}

func (t *Tier) closeFiles() error {
	var errs []error
	for _, g := range t.segments.list() {
		errs = append(errs, t.segments.remove(g))
	}
	if t.lock != nil {
		errs = append(errs, t.lock.Close())
	}
	if t.dir != nil {
		errs = append(errs, t.dir.Close())
	}
	return errors.Join(errs...)
}

// List calls yield for the key of each block in the index.
func (t *Tier) List(ctx context.Context, yield func(key block.Key) error) error {
	if err := t.beginOp(ctx); err != nil {
		return err
	}
	defer t.ops.EndOp()
	var some []entry
	for i := range t.table.shards {
		some = t.table.copyShard(i, some[:0])
		for j := range some {
			err := context.Cause(ctx)
			if err == nil {
				err = yield(some[j].key)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// Name implements tier.Tier.
func (t *Tier) Name() string { return Name }

// ReadOnly reports whether the tier was opened read-only.
func (t *Tier) ReadOnly() bool { return t.cfg.ReadOnly }

// beginOp begins an operation. t.ops.EndOp ends it.
func (t *Tier) beginOp(ctx context.Context) error {
	if err := t.ops.BeginOp(ctx); err != nil {
		return fmt.Errorf("use log tier: %w", err)
	}
	return nil
}

// Lookup reports which blocks the index has. It does not verify them.
func (t *Tier) Lookup(ctx context.Context, keys []block.Key, states []tier.State) error {
	if len(keys) != len(states) {
		return fmt.Errorf("look up %d blocks into %d states: %w", len(keys), len(states), errdefs.ErrInvalid)
	}
	if err := t.beginOp(ctx); err != nil {
		return err
	}
	defer t.ops.EndOp()
	for i, key := range keys {
		states[i] = tier.Absent
		if _, ok := t.table.get(key); ok {
			states[i] = tier.Ready
		} else if _, w := t.locks.State(key); w == usage.Writing {
			states[i] = tier.Filling
		}
	}
	return nil
}

// Kept reports the blocks that this process knows to be intact and durable.
func (t *Tier) Kept(ctx context.Context, keys []block.Key, kept []bool) error {
	if len(keys) != len(kept) {
		return fmt.Errorf("query %d blocks with %d results: %w", len(keys), len(kept), errdefs.ErrInvalid)
	}
	if err := t.beginOp(ctx); err != nil {
		return err
	}
	defer t.ops.EndOp()
	checked := make(map[uint32]bool)
	for i, key := range keys {
		e, ok := t.table.get(key)
		_, w := t.locks.State(key)
		if ok && !checked[e.segment] {
			checked[e.segment] = true
			t.checkName(e.segment)
		}
		kept[i] = ok && e.flags&seen != 0 && w != usage.Removing && t.durable(e)
	}
	return nil
}

// durable reports whether a block is, or will be, as durable as the policy requires.
func (t *Tier) durable(e entry) bool {
	g := t.segments.get(e.segment)
	return g != nil && !g.removed.Load() && (t.cfg.Fsync == FsyncNever || g.durable(e.off()+storedBytes(t.formats[e.group])))
}

// checkName checks whether the file of a segment was removed, so that its blocks are not durable.
func (t *Tier) checkName(number uint32) {
	g := t.segments.acquire(number)
	if g == nil {
		return
	}
	if err := errors.Join(g.checkName(), g.release()); err != nil && !errors.Is(err, errRemoved) {
		t.count.errors.Add(1)
	}
}

// safe reports whether a block is durable now. Under FsyncNever it returns true.
func (t *Tier) safe(e entry) bool {
	g := t.segments.get(e.segment)
	return t.cfg.Fsync == FsyncNever || g != nil && e.off()+storedBytes(t.formats[e.group]) <= g.synced.Load()
}

// Retain pins blocks up to the first missing one. Pinned blocks are not evicted.
func (t *Tier) Retain(ctx context.Context, keys []block.Key) (int, error) {
	if err := t.beginOp(ctx); err != nil {
		return 0, err
	}
	defer t.ops.EndOp()
	for n, key := range keys {
		if ctx.Err() != nil {
			return n, fmt.Errorf("retain block %s: %w", key, context.Cause(ctx))
		}
		// Pin before the lookup, because evictions check the pins first.
		if t.locks.Pin(key) {
			if _, ok := t.table.get(key); ok {
				t.count.retained.Add(1)
				t.used(key)
				continue
			}
			t.unpin(key)
		}
		t.count.misses.Add(1)
		return n, nil
	}
	return len(keys), nil
}

// Release undoes one Retain of each key.
func (t *Tier) Release(keys []block.Key) {
	t.unpin(keys...)
	t.count.retained.Add(-int64(len(keys)))
}

func (t *Tier) unpin(keys ...block.Key) {
	if t.locks.Unpin(keys) {
		t.space.notifyReleased()
	}
}

// setFailure records the result of background work.
func (t *Tier) setFailure(err error) {
	if err != nil && t.ctx.Err() == nil {
		t.count.errors.Add(1)
	}
	t.failure.Store(&err)
}

// fail counts a failed operation that is not a miss, and returns err.
func (t *Tier) fail(err error) error {
	t.count.errors.Add(1)
	return err
}

// Stats returns the counters. Bytes is the total size of the images. CapacityBytes is the bound of
// the segment files.
func (t *Tier) Stats() tier.Stats {
	c, pinned := &t.count, t.pins.Total(t.formats)
	return tier.Stats{
		Pinned: pinned.Blocks, PinnedBytes: pinned.Bytes,
		Blocks: c.blocks.Load(), Bytes: c.bytes.Load(), CapacityBytes: t.cfg.MaxBytes,
		Hits: c.hits.Load(), Misses: c.misses.Load(),
		Puts: c.puts.Load(), Evictions: c.evictions.Load(),
		Corrupt: c.corrupt.Load(), Replaced: c.replaced.Load(), Errors: c.errors.Load(),
		ReadBytes: c.readBytes.Load(), WrittenBytes: c.writtenBytes.Load(),
		Retained: c.retained.Load(), Quarantined: c.quarantined.Load(), Swept: c.swept.Load(),
		Waiting: t.space.waiting(), Stuck: c.stuck.Load(), Paused: t.pause.Cause(), Failure: *t.failure.Load(),
	}
}

// uncount removes a block, which was removed from the index, from all counts.
func (t *Tier) uncount(e entry) {
	f := t.formats[e.group]
	t.uncountPlace(e, storedBytes(f))
	t.count.blocks.Add(-1)
	t.count.bytes.Add(-f.Layout.ImageBytes())
}

// tombstone appends a deletion of the block. When the deletion is as durable as the policy
// requires, it removes the block from the index. The caller has locked the key.
func (t *Tier) tombstone(ctx context.Context, key block.Key) error {
	p := t.deletion(key, 0)
	var a *appender
	select {
	case a = <-t.first:
	case <-ctx.Done():
		return queuedErr(ctx)
	}
	defer a.release()
	a.appendAll([]*pending{p}, true)
	if t.space.excess() > 0 {
		t.collectSoon()
	}
	return p.err
}

// Delete removes the block. It waits for other writes and removals of the block, and for earlier
// writes to the log.
func (t *Tier) Delete(ctx context.Context, key block.Key) error {
	if err := t.beginOp(ctx); err != nil {
		return err
	}
	defer t.ops.EndOp()
	err := t.delete(ctx, key)
	if err == nil {
		t.noteRemoval(key, tier.CauseProgram)
	}
	if err != nil && !errors.Is(err, errdefs.ErrBusy) && !errors.Is(err, errdefs.ErrNotFound) {
		t.count.errors.Add(1)
	}
	if err != nil {
		return fmt.Errorf("delete block %s: %w", key, err)
	}
	return nil
}

func (t *Tier) delete(ctx context.Context, key block.Key) error {
	if t.cfg.ReadOnly {
		return errReadOnly
	}
	if err := t.locks.Lock(ctx, t.ctx.Done(), key, usage.Removing); err != nil {
		return err
	}
	defer t.locks.Unlock(key)
	if t.pins.Has(key) {
		return blockdir.ErrPinned
	}
	if retained, _ := t.locks.State(key); retained {
		return fmt.Errorf("it is retained: %w", errdefs.ErrBusy)
	}
	if _, ok := t.table.get(key); !ok {
		return errdefs.ErrNotFound
	}
	if err := t.tombstone(ctx, key); errors.Is(err, errBoundFull) {
		return fmt.Errorf("%w: %w", errdefs.ErrNoSpace, err)
	} else if err != nil {
		return blockdir.WriteError(err)
	}
	return nil
}

// noteRemoval writes the removal of a block to the removal log.
func (t *Tier) noteRemoval(key block.Key, cause tier.Cause) {
	t.removals.Add(t.clock.Now(), key, cause)
	t.removals.Flush()
}
