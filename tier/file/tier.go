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

// Tier keeps blocks in files. It implements tier.Tier and tier.Statter and is safe for concurrent use.
type Tier struct {
	cfg     Config
	clock   clockwork.Clock
	formats block.Formats
	dirs    []*dir
	areas   []*area // which the directories are divided among
	locks   *usage.KeyLocks
	proofs  proofs
	times   times
	count   counters
	buffers sync.Pool // *[]byte of the longest image

	// gate is passed by every operation for its whole duration, I/O included, and closed by Close, which waits for those in
	// flight: a session's folder cannot go while somebody writes there.
	ops     usage.OpCounter
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	closing chan struct{} // a lock with a context: one Close at a time
	closed  bool          // guarded by closing
}

type counters struct {
	hits, misses, puts, evictions, corrupt, errors atomic.Int64
	readBytes, writtenBytes                        atomic.Int64
	retained, quarantined, swept, replaced, newer  atomic.Int64
	yielded, reclaimed                             atomic.Int64
}

// errReadOnly is what a tier that only reads says to whoever wants to change something.
var errReadOnly = fmt.Errorf("the tier was opened for reading only: %w", errdefs.ErrReadOnly)

// Open opens the directories, or makes them, and sweeps what dead processes left there. Errors name the directory and
// wrap ErrInvalid, ErrMismatch (another identity, layout or version), ErrCorrupt (unreadable marker), ErrReadOnly or
// ErrNoSpace. It waits, until ctx ends, for other processes that are opening one of the directories. ctx bounds the opening
// only.
func Open(ctx context.Context, c Config) (*Tier, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("open file tier: %w", err)
	}
	c.setDefaults()
	t := &Tier{
		cfg: c, clock: c.Clock, formats: c.Formats,
		locks:   usage.NewKeyLocks(),
		closing: make(chan struct{}, 1),
	}
	t.proofs.init()
	t.ops.Init()
	if err := t.openDirs(ctx); err != nil {
		return nil, fmt.Errorf("open file tier: %w", errors.Join(err, t.closeDirs()))
	}
	t.divide()
	t.ctx, t.cancel = context.WithCancel(context.Background())
	for _, a := range t.areas {
		go a.collector()
	}
	if err := t.awaitCount(ctx); err != nil {
		// Nothing is under way but the count, which listens to Close, unless the file system hangs.
		brief, cancel := context.WithTimeout(context.WithoutCancel(ctx), countPatience)
		defer cancel()
		return nil, fmt.Errorf("open file tier: count blocks: %w", errors.Join(err, t.Close(brief)))
	}
	return t, nil
}

// awaitCount waits for the first count, but not for long.
func (t *Tier) awaitCount(ctx context.Context) error {
	late := t.clock.After(countPatience)
	for _, a := range t.areas {
		select {
		case <-a.counted:
		case <-late:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// countPatience is how long Open waits for the first count: long enough for a million files on a local disk, and no
// reason for a slow network file system to hold up a program's start.
const countPatience = 2 * time.Second

func (t *Tier) openDirs(ctx context.Context) error {
	byID := make(map[string]string)
	for _, root := range t.cfg.Dirs {
		d, err := openDir(ctx, &t.cfg, root)
		if err != nil {
			return err
		}
		t.dirs = append(t.dirs, d)
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

// Close refuses new operations, ends those that wait, waits for those that read or write, and removes the tier's folders
// for temporary files. If ctx ends first, as it may where a file system hangs, the error wraps ErrBusy, memory given to a Get or
// Put that is under way must not be freed, and Close may be called again. After success it returns nil at once.
func (t *Tier) Close(ctx context.Context) error {
	t.ops.Close()
	t.cancel()
	busy := func() error {
		active, _ := t.ops.Count()
		return fmt.Errorf("close file tier: %d reads and writes of files have not ended: %w: %w", active, errdefs.ErrBusy, context.Cause(ctx))
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
	ends := []<-chan struct{}{t.ops.Idle}
	for _, a := range t.areas {
		ends = append(ends, a.done)
	}
	for _, ended := range ends {
		select {
		case <-ended:
		case <-ctx.Done():
			return busy()
		}
	}
	t.closed = true
	for _, a := range t.areas {
		a.writeRecords(true)
	}
	if err := t.closeDirs(); err != nil {
		return fmt.Errorf("close file tier: %w", err)
	}
	return nil
}

// Name returns "file".
func (t *Tier) Name() string { return "file" }

// ReadOnly says whether the tier was opened for reading only.
func (t *Tier) ReadOnly() bool { return t.cfg.ReadOnly }

// enter begins an operation; leave ends it.
func (t *Tier) enter(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("use file tier: %w", err)
	}
	if err := t.ops.BeginOp(); err != nil {
		return fmt.Errorf("use file tier: %w", err)
	}
	return nil
}

func (t *Tier) leave() { t.ops.EndOp() }

// Lookup says which blocks are there, by name, kind and size; their bytes are checked when they are read. A block may be
// removed right after: Retain those that are to be read. A block is Filling until it is as durable as the policy promises.
func (t *Tier) Lookup(ctx context.Context, keys []block.Key, states []tier.State) error {
	if len(keys) != len(states) {
		return fmt.Errorf("look up %d blocks into %d states: %w", len(keys), len(states), errdefs.ErrInvalid)
	}
	if err := t.enter(ctx); err != nil {
		return err
	}
	defer t.leave()
	for i, key := range keys {
		if ctx.Err() != nil {
			return fmt.Errorf("look up block %s: %w", key, context.Cause(ctx))
		}
		info, err := dirOf(t.dirs, key).Stat(blockName(key))
		_, w := t.locks.State(key) // after it: a file that was seen may not be durable yet
		switch {
		case err == nil && w != usage.Publishing && t.plausible(key, info) == nil:
			states[i] = tier.Ready
			continue
		case err == nil:
			states[i] = tier.Failed
		case blockdir.Gone(err):
			states[i] = tier.Absent
			t.noteGone(key, false)
		default:
			return t.fail(fmt.Errorf("look up block %s: %w", key, err))
		}
		if w == usage.Writing || w == usage.Publishing {
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
	if err := t.enter(ctx); err != nil {
		return err
	}
	defer t.leave()
	for i, key := range keys {
		if ctx.Err() != nil {
			return fmt.Errorf("ask for block %s: %w", key, context.Cause(ctx))
		}
		kept[i] = false
		info, err := dirOf(t.dirs, key).Stat(blockName(key))
		if err != nil || t.plausible(key, info) != nil {
			continue // the Put says what is wrong
		}
		_, w := t.locks.State(key)
		whole, synced := t.proofs.has(key, info)
		kept[i] = whole && (synced || t.cfg.Fsync != FsyncFile) && w != usage.Publishing && w != usage.Removing
	}
	return nil
}

// Retain pins blocks against removal by this process, up to the first that is not there; see the package's comment for others.
func (t *Tier) Retain(ctx context.Context, keys []block.Key) (int, error) {
	if err := t.enter(ctx); err != nil {
		return 0, err
	}
	defer t.leave()
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
	// Pinned before it is looked at: whoever removes files looks at the pins first.
	if !t.locks.Pin(key) {
		t.count.misses.Add(1)
		return false, nil
	}
	d := dirOf(t.dirs, key)
	info, err := d.Stat(blockName(key))
	_, w := t.locks.State(key)
	if err == nil && w != usage.Publishing && t.plausible(key, info) == nil {
		t.count.retained.Add(1)
		t.touch(d, key, info)
		return true, nil
	}
	t.unpin(key)
	if err == nil || blockdir.Gone(err) {
		t.count.misses.Add(1)
		if err != nil {
			t.noteGone(key, false)
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
			a.space.released()
		}
	}
}

// fail counts an operation that failed for another reason than a miss.
func (t *Tier) fail(err error) error {
	t.count.errors.Add(1)
	return err
}

// Stats returns what was counted. Blocks and Bytes grow for a while after Open where the directories are so large or so
// slow that counting their files took longer than Open waits; what other processes do to them shows within a minute.
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
	unbounded := false
	for _, a := range t.areas {
		blocks, bytes := a.space.holds()
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
