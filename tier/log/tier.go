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

// Tier keeps blocks in a log. It implements tier.Tier, tier.Keeper and tier.Statter and is safe for concurrent use.
type Tier struct {
	cfg      Config
	clock    clockwork.Clock
	formats  block.Formats
	dir      dirfs.Dir
	lock     dirfs.File // held while the tier is open; nil in one that only reads
	id       [16]byte   // the directory's
	table    table
	segments segments
	cache    headerCache
	locks    *usage.KeyLocks
	pause    usage.Pause
	room     room
	count    counters
	buffers  sync.Pool // *[]byte of the longest image

	queue struct {
		mu    sync.Mutex
		recs  []*pending
		bytes int64 // of recs
	}
	appenders     []*appender
	first, others chan *appender // those that nobody has: the first of all, and the others
	sealing       chan struct{}  // holds a token while somebody takes all of them
	making        chan struct{}  // holds a token while a segment is made: they come into the log in the order of their numbers
	epoch         uint64         // the number of the first segment that this process may make
	turns         atomic.Int64   // groups begun
	zeros         [page]byte
	// order is held while a group is entered in the index, so that whoever holds it sees all of what was entered before something, if
	// he sees that. It guards last, and the appenders' numbers.
	order sync.Mutex
	last  uint32 // the highest number of a segment so far

	synced    atomic.Pointer[position] // all before it is durable
	broken    atomic.Pointer[position] // a sync of what is behind it failed
	unsynced  chan struct{}            // asks the syncer for a sync
	dirty     atomic.Int64             // bytes written since unstarted was asked
	unstarted chan struct{}            // asks the syncer to start writeback
	syncing   chan struct{}            // holds a token while a sync runs

	written    atomic.Int64     // bytes since the last checkpoint
	rounds     chan struct{}    // holds a token while segments are emptied, or a checkpoint is written; guards covered and moveArena
	covered    map[uint32]int64 // how much of each segment the last checkpoint covers
	moveArena  []byte
	kick       chan struct{}
	background sync.WaitGroup

	places   atomic.Pointer[tier.Order]
	uses     atomic.Int64 // blocks put and used: the rank of a block that is used now
	replayed replayed
	credit   atomic.Int64 // bytes that were put, less those that were moved to keep them

	damage []finding // of when the log was opened
	left   []uint32  // numbers of files that opening did not change
	notes  []string

	ops     usage.OpCounter
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	failure atomic.Pointer[error]
	closing chan struct{}
	closed  bool // guarded by closing
}

type counters struct {
	blocks, bytes                                  atomic.Int64
	hits, misses, puts, evictions, corrupt, errors atomic.Int64
	readBytes, writtenBytes                        atomic.Int64
	retained, quarantined, swept, stuck, replaced  atomic.Int64
}

// errReadOnly is what a tier that only reads says to whoever wants to change something.
var errReadOnly = fmt.Errorf("the tier was opened for reading only: %w", errdefs.ErrReadOnly)

// Close refuses new operations, ends those that wait, waits for those that read or write, makes durable what is not by the policy, and
// writes a checkpoint. If ctx ends first, the error wraps ErrBusy, memory given to a Get or Put that is under way must not be freed, and
// Close may be called again. Another error says what could not be written; the tier is closed all the same.
func (t *Tier) Close(ctx context.Context) error {
	t.ops.Close()
	t.cancel()
	busy := func() error {
		active, _ := t.ops.Count()
		return fmt.Errorf("close log tier: %d reads and writes have not ended: %w: %w", active, errdefs.ErrBusy, context.Cause(ctx))
	}
	select {
	case t.closing <- struct{}{}:
		defer func() { <-t.closing }()
	case <-ctx.Done():
		return busy()
	}
	if t.closed {
		return nil
	}
	ended := make(chan struct{})
	go func() {
		t.background.Wait()
		close(ended)
	}()
	for _, c := range []<-chan struct{}{ended, t.ops.Idle} {
		select {
		case <-c:
		case <-ctx.Done():
			return busy()
		}
	}
	t.closed = true
	var err error
	if !t.cfg.ReadOnly {
		err = errors.Join(t.sealAll(), t.checkpoint())
	}
	if err = errors.Join(err, t.closeFiles()); err != nil {
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

// Name returns "log".
func (t *Tier) Name() string { return "log" }

// ReadOnly says whether the tier was opened for reading only.
func (t *Tier) ReadOnly() bool { return t.cfg.ReadOnly }

// begin begins an operation; t.gate.Leave ends it.
func (t *Tier) begin(ctx context.Context) error {
	err := context.Cause(ctx)
	if err == nil {
		err = t.ops.BeginOp()
	}
	if err != nil {
		return fmt.Errorf("use log tier: %w", err)
	}
	return nil
}

// Lookup says which blocks are there, by the index; their bytes are checked when they are read.
func (t *Tier) Lookup(ctx context.Context, keys []block.Key, states []tier.State) error {
	if len(keys) != len(states) {
		return fmt.Errorf("look up %d blocks into %d states: %w", len(keys), len(states), errdefs.ErrInvalid)
	}
	if err := t.begin(ctx); err != nil {
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

// Kept says of which blocks this process knows, without reading them, that a Put would find them whole and durable.
func (t *Tier) Kept(ctx context.Context, keys []block.Key, kept []bool) error {
	if len(keys) != len(kept) {
		return fmt.Errorf("ask for %d blocks into %d answers: %w", len(keys), len(kept), errdefs.ErrInvalid)
	}
	if err := t.begin(ctx); err != nil {
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

// durable says whether a block is as durable as the policy promises, or will be.
func (t *Tier) durable(e entry) bool {
	g := t.segments.look(e.segment)
	return g != nil && !g.removed.Load() && (t.cfg.Fsync == FsyncNever || g.durable(e.off()+storedBytes(t.formats[e.group])))
}

// checkName checks whether the file of a segment was removed. Its blocks are not durable then.
func (t *Tier) checkName(number uint32) {
	g := t.segments.use(number)
	if g == nil {
		return
	}
	if err := errors.Join(g.checkName(), g.release()); err != nil && !errors.Is(err, errRemoved) {
		t.count.errors.Add(1)
	}
}

// safe says whether a block is as durable now as the policy promises, sooner or later.
func (t *Tier) safe(e entry) bool {
	g := t.segments.look(e.segment)
	return t.cfg.Fsync == FsyncNever || g != nil && e.off()+storedBytes(t.formats[e.group]) <= g.synced.Load()
}

// Retain pins blocks against eviction, up to the first that is not there.
func (t *Tier) Retain(ctx context.Context, keys []block.Key) (int, error) {
	if err := t.begin(ctx); err != nil {
		return 0, err
	}
	defer t.ops.EndOp()
	for n, key := range keys {
		if ctx.Err() != nil {
			return n, fmt.Errorf("retain block %s: %w", key, context.Cause(ctx))
		}
		// Pinned before it is looked at: whoever removes blocks looks at the pins first.
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
		t.room.released()
	}
}

// noted keeps how work ended that nobody waits for.
func (t *Tier) noted(err error) {
	if err != nil && t.ctx.Err() == nil {
		t.count.errors.Add(1)
	}
	t.failure.Store(&err)
}

// fail counts an operation that failed for another reason than a miss.
func (t *Tier) fail(err error) error {
	t.count.errors.Add(1)
	return err
}

// Stats returns what was counted. Bytes are those of the blocks' images; CapacityBytes bounds the segment files.
func (t *Tier) Stats() tier.Stats {
	c := &t.count
	return tier.Stats{
		Blocks: c.blocks.Load(), Bytes: c.bytes.Load(), CapacityBytes: t.cfg.MaxBytes,
		Hits: c.hits.Load(), Misses: c.misses.Load(),
		Puts: c.puts.Load(), Evictions: c.evictions.Load(),
		Corrupt: c.corrupt.Load(), Replaced: c.replaced.Load(), Errors: c.errors.Load(),
		ReadBytes: c.readBytes.Load(), WrittenBytes: c.writtenBytes.Load(),
		Retained: c.retained.Load(), Quarantined: c.quarantined.Load(), Swept: c.swept.Load(),
		Waiting: t.room.waiting(), Stuck: c.stuck.Load(), Paused: t.pause.Cause(), Failure: *t.failure.Load(),
	}
}

// gone takes a block that was removed from the index off all accounts.
func (t *Tier) gone(e entry) {
	f := t.formats[e.group]
	t.drop(e, storedBytes(f))
	t.count.blocks.Add(-1)
	t.count.bytes.Add(-f.Layout.ImageBytes())
}

// tombstone appends that a block was deleted, and takes it out of the index when that is as durable as the policy promises. The caller owns the key.
func (t *Tier) tombstone(ctx context.Context, key block.Key) error {
	p := &pending{record: record{key: key, kind: deleted}}
	var a *appender
	select {
	case a = <-t.first:
	case <-ctx.Done():
		return queued(ctx)
	}
	defer a.leave()
	a.appendAll([]*pending{p}, true)
	if t.room.excess() > 0 {
		t.collectSoon()
	}
	return p.err
}

// Delete removes the block. It waits while somebody writes or removes it, or writes something else.
func (t *Tier) Delete(ctx context.Context, key block.Key) error {
	if err := t.begin(ctx); err != nil {
		return err
	}
	defer t.ops.EndOp()
	err := t.delete(ctx, key)
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
	if pinned, _ := t.locks.State(key); pinned {
		return fmt.Errorf("it is retained: %w", errdefs.ErrBusy)
	}
	if _, ok := t.table.get(key); !ok {
		return errdefs.ErrNotFound
	}
	if err := t.tombstone(ctx, key); errors.Is(err, errNoRoom) {
		return fmt.Errorf("%w: %w", errdefs.ErrNoSpace, err)
	} else if err != nil {
		return blockdir.WriteError(err)
	}
	return nil
}
