package file

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/internal/usage"
)

// Tier stores blocks in files. It implements tier.Tier and tier.Statter. It is safe for concurrent
// use.
type Tier struct {
	cfg     Config
	clock   clockwork.Clock
	formats block.Formats
	dirs    []*dir
	areas   []*area // each directory is in one of them
	locks   *usage.KeyLocks
	proofs  proofs
	times   times
	count   counters
	buffers sync.Pool // buffers of the length of the longest image (*[]byte)

	// ops counts operations for their whole duration, including I/O. Close waits for them, because
	// a session's folder must not be removed during a write.
	ops    usage.OpCounter
	ctx    context.Context // canceled by Close
	cancel context.CancelFunc
}

type counters struct {
	hits, misses, puts, evictions, corrupt, errors atomic.Int64
	readBytes, writtenBytes                        atomic.Int64
	retained, quarantined, swept, replaced, newer  atomic.Int64
	yielded, reclaimed                             atomic.Int64
}

// errReadOnly is returned by changes of a tier that was opened read-only.
var errReadOnly = fmt.Errorf("the tier was opened for reading only: %w", errdefs.ErrReadOnly)

// Open opens or creates the directories and removes files of ended processes. It waits, until ctx
// ends, for other processes that are opening one of the directories. Errors name the directory and
// wrap ErrInvalid, ErrMismatch (another identity, layout or version), ErrCorrupt (malformed
// marker), ErrReadOnly or ErrNoSpace. ctx is used only during Open.
func Open(ctx context.Context, c Config) (*Tier, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("open file tier: %w", err)
	}
	c.setDefaults()
	t := &Tier{
		cfg: c, clock: c.Clock, formats: c.Formats,
		locks: usage.NewKeyLocks(),
	}
	t.proofs.init()
	t.ops.Init()
	if err := t.openDirs(ctx); err != nil {
		return nil, fmt.Errorf("open file tier: %w", errors.Join(err, t.closeDirs()))
	}
	t.makeAreas()
	c.OpenFolders.add(t)
	t.ctx, t.cancel = context.WithCancel(context.Background())
	for _, a := range t.areas {
		go a.collector()
	}
	if err := t.awaitCount(ctx); err != nil {
		// Only the count is running. Close ends it, unless the file system hangs.
		closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), countPatience)
		defer cancel()
		return nil, fmt.Errorf("open file tier: count blocks: %w", errors.Join(err, t.Close(closeCtx)))
	}
	return t, nil
}

// OpenTier is Open, as a tier of a store.
func (c *Config) OpenTier(ctx context.Context) (tier.Tier, error) {
	t, err := Open(ctx, *c)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// awaitCount waits for the first count for at most countPatience.
func (t *Tier) awaitCount(ctx context.Context) error {
	deadline := t.clock.After(countPatience)
	for _, a := range t.areas {
		select {
		case <-a.counted:
		case <-deadline:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// countPatience bounds the wait for the first count. It suffices for a million files on a local
// disk; a slow network file system delays the start of a program no longer than that.
const countPatience = 2 * time.Second

func (t *Tier) openDirs(ctx context.Context) error {
	byID := make(map[string]string)
	for _, root := range t.cfg.Dirs {
		d, err := openDir(ctx, &t.cfg, root)
		if err != nil {
			return err
		}
		t.dirs = append(t.dirs, d)
		d.pins = blockdir.NewPins(t.locks)
		if err := t.refreshPins(d); err != nil {
			return fmt.Errorf("directory %s: read the pinned blocks: %w", d.root, err)
		}
		t.count.swept.Add(int64(d.swept))
		t.count.errors.Add(int64(d.left))
		if other, ok := byID[d.id]; ok {
			return fmt.Errorf("directories %s and %s are the same, or one is a copy of the other (directory id %s in both): %w",
				other, d.root, d.id, errdefs.ErrInvalid)
		}
		byID[d.id] = d.root
	}
	return nil
}

func (t *Tier) closeDirs() error {
	var errs []error
	for _, d := range t.dirs {
		if err := d.close(); err != nil {
			errs = append(errs, fmt.Errorf("directory %s: %w", d.root, err))
		}
	}
	return errors.Join(errs...)
}

// Close refuses new operations, ends waits, waits for running reads and writes, and removes the
// tier's temporary folders. If ctx ends first, for example because a file system hangs, it returns
// ErrBusy. The memory of running Get or Put calls must then not be freed, and Close may be called
// again. After a success Close returns nil.
func (t *Tier) Close(ctx context.Context) error {
	t.ops.Close()
	t.cancel()
	var ended []<-chan struct{}
	for _, a := range t.areas {
		ended = append(ended, a.done)
	}
	err := t.ops.Release(ctx, ended, func() error {
		for _, a := range t.areas {
			a.writeRecords(true)
		}
		t.cfg.OpenFolders.remove(t)
		return t.closeDirs()
	})
	if err != nil {
		return fmt.Errorf("close file tier: %w", err)
	}
	return nil
}

// Name implements tier.Tier.
func (t *Tier) Name() string { return Name }

// Notes returns sentences about lists of pins that are damaged, and about other identities that use
// part of the tier's bound.
func (t *Tier) Notes() []string {
	s, notes := t.Stats(), []string(nil)
	for _, d := range t.dirs {
		if bad := d.pinsErr.Load(); bad != nil {
			notes = append(notes, fmt.Sprintf("directory %s: %v; pin the blocks again", d.root, *bad))
		}
	}
	if s.OthersBytes == 0 {
		return notes
	}
	return append(notes, fmt.Sprintf("the limit of %d bytes is for all folders in the parent directories of the file tier: other identities use %d bytes there",
		s.CapacityBytes, s.OthersBytes))
}

// ReadOnly reports whether the tier was opened read-only.
func (t *Tier) ReadOnly() bool { return t.cfg.ReadOnly }

// List calls yield for the key of each block in the directories, by the names of files. It does not
// verify them.
func (t *Tier) List(ctx context.Context, yield func(key block.Key) error) error {
	if err := t.beginOp(ctx); err != nil {
		return err
	}
	defer t.endOp()
	for _, d := range t.dirs {
		for b := range buckets {
			keys, _, err := listBucket(d, byte(b))
			for i := 0; i < len(keys) && err == nil; i++ {
				if err = context.Cause(ctx); err == nil {
					err = yield(keys[i])
				}
			}
			if err != nil {
				return fmt.Errorf("list blocks of directory %s: %w", d.root, err)
			}
		}
	}
	return nil
}

// beginOp begins an operation. endOp ends it.
func (t *Tier) beginOp(ctx context.Context) error {
	if err := t.ops.BeginOp(ctx); err != nil {
		return fmt.Errorf("use file tier: %w", err)
	}
	return nil
}

func (t *Tier) endOp() { t.ops.EndOp() }

// Lookup reports which blocks are stored, by the name, type and size of their files. It does not
// verify them. A block may be removed at any time, so call Retain before reading. A block is
// Filling until it is as durable as the policy requires.
func (t *Tier) Lookup(ctx context.Context, keys []block.Key, states []tier.State) error {
	if len(keys) != len(states) {
		return fmt.Errorf("look up %d blocks into %d states: %w", len(keys), len(states), errdefs.ErrInvalid)
	}
	if err := t.beginOp(ctx); err != nil {
		return err
	}
	defer t.endOp()
	for i, key := range keys {
		if ctx.Err() != nil {
			return fmt.Errorf("look up block %s: %w", key, context.Cause(ctx))
		}
		info, err := dirOf(t.dirs, key).Stat(blockName(key))
		_, w := t.locks.State(key) // after Stat: the file may not be durable yet
		switch {
		case err == nil && w != usage.Publishing && t.checkInfo(key, info) == nil:
			states[i] = tier.Ready
			continue
		case err == nil:
			states[i] = tier.Failed
		case blockdir.Gone(err):
			states[i] = tier.Absent
			t.noteMissing(key, false)
		default:
			return t.fail(fmt.Errorf("look up block %s: %w", key, err))
		}
		if w == usage.Writing || w == usage.Publishing {
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
	defer t.endOp()
	for i, key := range keys {
		if ctx.Err() != nil {
			return fmt.Errorf("query block %s: %w", key, context.Cause(ctx))
		}
		kept[i] = false
		info, err := dirOf(t.dirs, key).Stat(blockName(key))
		if err != nil || t.checkInfo(key, info) != nil {
			continue // Put reports the error
		}
		_, w := t.locks.State(key)
		whole, synced := t.proofs.has(key, info)
		kept[i] = whole && (synced || t.cfg.Fsync != FsyncFile) && w != usage.Publishing && w != usage.Removing
	}
	return nil
}

// Retain pins blocks up to the first missing one. This process does not remove pinned blocks; see
// the package comment about other processes.
func (t *Tier) Retain(ctx context.Context, keys []block.Key) (int, error) {
	if err := t.beginOp(ctx); err != nil {
		return 0, err
	}
	defer t.endOp()
	for n, key := range keys {
		if ctx.Err() != nil {
			return n, fmt.Errorf("retain block %s: %w", key, context.Cause(ctx))
		}
		if ok, err := t.retain(key); !ok {
			return n, err
		}
	}
	return len(keys), nil
}

func (t *Tier) retain(key block.Key) (bool, error) {
	// Pin before Stat, because evictions check the pins first.
	if !t.locks.Pin(key) {
		t.count.misses.Add(1)
		return false, nil
	}
	d := dirOf(t.dirs, key)
	info, err := d.Stat(blockName(key))
	_, w := t.locks.State(key)
	if err == nil && w != usage.Publishing && t.checkInfo(key, info) == nil {
		t.count.retained.Add(1)
		t.touch(d, key, info)
		return true, nil
	}
	t.unpin(key)
	if err == nil || blockdir.Gone(err) {
		t.count.misses.Add(1)
		if err != nil {
			t.noteMissing(key, false)
		}
		return false, nil
	}
	return false, t.fail(fmt.Errorf("retain block %s: %w", key, err))
}

// Release undoes one Retain of each key.
func (t *Tier) Release(keys []block.Key) {
	t.unpin(keys...)
	t.count.retained.Add(-int64(len(keys)))
}

func (t *Tier) unpin(keys ...block.Key) {
	if t.locks.Unpin(keys) {
		for _, a := range t.areas {
			a.space.notifyReleased()
		}
	}
}

// fail counts a failed operation that is not a miss, and returns err.
func (t *Tier) fail(err error) error {
	t.count.errors.Add(1)
	return err
}

// Stats returns the counters. Blocks and Bytes grow after Open if Open has not waited for the end
// of the first count. Changes by other processes appear within a minute.
func (t *Tier) Stats() tier.Stats {
	c := &t.count
	s := tier.Stats{
		Hits: c.hits.Load(), Misses: c.misses.Load(),
		Puts: c.puts.Load(), Evictions: c.evictions.Load(),
		Corrupt: c.corrupt.Load(), Replaced: c.replaced.Load(), Errors: c.errors.Load(),
		ReadBytes: c.readBytes.Load(), WrittenBytes: c.writtenBytes.Load(),
		Yielded: c.yielded.Load(), Reclaimed: c.reclaimed.Load(),
		Retained: c.retained.Load(), Quarantined: c.quarantined.Load(), Swept: c.swept.Load(), Newer: c.newer.Load(),
	}
	for _, d := range t.dirs {
		n := d.pins.Total(t.formats)
		s.Pinned, s.PinnedBytes = s.Pinned+n.Blocks, s.PinnedBytes+n.Bytes
	}
	unbounded := false
	for _, a := range t.areas {
		blocks, bytes := a.space.stored()
		s.Blocks, s.Bytes, s.CapacityBytes = s.Blocks+blocks, s.Bytes+bytes, s.CapacityBytes+a.bound
		s.OthersBytes += a.others.Load()
		s.Waiting, s.Stuck = s.Waiting+a.space.waiting(), s.Stuck+a.stuck.Load()
		s.Paused, s.Failure = errors.Join(s.Paused, a.paused()), errors.Join(s.Failure, *a.failure.Load())
		unbounded = unbounded || a.bound == 0
	}
	if unbounded {
		s.CapacityBytes = 0
	}
	return s
}
