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
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
)

// Tier keeps blocks in files. It implements tier.Tier and tier.Statter and is safe for concurrent use.
type Tier struct {
	cfg    Config
	fs     FS
	clock  clockwork.Clock
	image  int64 // bytes of a block's file
	dirs   []*dir
	owners owners
	space  space
	count  counters

	// gate is held shared by every operation for its whole duration, I/O included, and taken by Close, which so waits
	// for those in flight: a session's folder cannot go while somebody writes there.
	gate    sync.RWMutex
	closed  atomic.Bool
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	kick    chan struct{} // asks the collector for a round
	round   chan struct{} // holds a token while a round runs
	counted chan struct{} // closed after the first count
	done    chan struct{} // closed when the collector has ended
	failure atomic.Pointer[error]
	closing sync.Once
	err     error // of Close
}

type counters struct {
	hits, misses, puts, evictions, corrupt, errors atomic.Int64
	readBytes, writtenBytes                        atomic.Int64
	retained, quarantined, swept                   atomic.Int64
}

// Open opens the directories, or makes them, and sweeps what dead processes left there. Errors name the directory and
// wrap ErrInvalid, ErrMismatch (another identity, layout or version), ErrCorrupt (unreadable marker), ErrReadOnly or
// ErrNoSpace. It waits for other processes that are opening one of the directories.
func Open(c Config) (_ *Tier, err error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("open file tier: %w", err)
	}
	if c.FS == nil {
		c.FS = OS()
	}
	if c.Clock == nil {
		c.Clock = clockwork.NewRealClock()
	}
	if c.TouchAfter == 0 {
		c.TouchAfter = defaultTouchAfter
	}
	if c.QuarantineMax == 0 {
		c.QuarantineMax = defaultQuarantineMax
	}
	t := &Tier{
		cfg: c, fs: c.FS, clock: c.Clock, image: c.Format.Layout.ImageBytes(),
		owners: owners{keys: make(map[block.Key]use)},
		space:  space{limits: c.limits()},
		kick:   make(chan struct{}, 1), round: make(chan struct{}, 1),
		counted: make(chan struct{}), done: make(chan struct{}),
	}
	if err := t.openDirs(); err != nil {
		return nil, fmt.Errorf("open file tier: %w", errors.Join(err, t.closeDirs()))
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	go t.collector()
	select {
	case <-t.counted:
		if f := t.failure.Load(); *f != nil {
			return nil, fmt.Errorf("open file tier: %w", errors.Join(*f, t.Close()))
		}
	case <-t.clock.After(countPatience):
	}
	return t, nil
}

// countPatience is how long Open waits for the first count: long enough for a million files on a local disk, and no
// reason for a slow network file system to hold up a program's start.
const countPatience = 2 * time.Second

func (t *Tier) openDirs() error {
	byID := make(map[string]string)
	for _, root := range t.cfg.Dirs {
		d, err := openDir(&t.cfg, root)
		if err != nil {
			return err
		}
		t.dirs = append(t.dirs, d)
		t.count.swept.Add(int64(d.swept))
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
		if err := d.session.close(); err != nil {
			errs = append(errs, fmt.Errorf("directory %s: %w", d.root, err))
		}
	}
	return errors.Join(errs...)
}

// Close refuses new operations, ends those that wait, waits for those that read or write, and removes the tier's folders
// for temporary files. A second Close returns what the first did.
func (t *Tier) Close() error {
	t.closing.Do(func() {
		t.closed.Store(true)
		t.cancel()
		<-t.done
		t.gate.Lock()
		defer t.gate.Unlock()
		if err := t.closeDirs(); err != nil {
			t.err = fmt.Errorf("close file tier: %w", err)
		}
	})
	return t.err
}

// Name returns "file".
func (t *Tier) Name() string { return "file" }

// enter begins an operation; leave ends it.
func (t *Tier) enter(ctx context.Context) error {
	if !t.closed.Load() {
		t.gate.RLock()
		if !t.closed.Load() {
			if ctx.Err() == nil {
				return nil
			}
			t.gate.RUnlock()
			return fmt.Errorf("use file tier: %w", context.Cause(ctx))
		}
		t.gate.RUnlock()
	}
	return fmt.Errorf("use file tier: %w", errdefs.ErrClosed)
}

func (t *Tier) leave() { t.gate.RUnlock() }

// buffer returns the bytes of an extent that is as long as an image.
func (t *Tier) buffer(e mem.Extent) ([]byte, error) {
	if err := e.Validate(); err != nil {
		return nil, err
	}
	if e.Len != t.image {
		return nil, fmt.Errorf("the extent has %d bytes, an image %d: %w", e.Len, t.image, errdefs.ErrInvalid)
	}
	b := e.Bytes()
	if b == nil {
		return nil, fmt.Errorf("the CPU cannot reach the %s: %w", e.Region, errdefs.ErrInvalid)
	}
	return b, nil
}

// Lookup says which blocks are there, by name and size; their bytes are checked when they are read. A block may be
// removed right after: Retain those that are to be read.
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
		info, err := t.fs.Stat(blockPath(dirOf(t.dirs, key).root, key))
		switch {
		case err == nil && info.Bytes == t.image:
			states[i] = tier.Ready
		case err == nil:
			states[i] = tier.Failed
		case gone(err):
			states[i] = tier.Absent
		default:
			return t.fail(fmt.Errorf("look up block %s: %w", key, err))
		}
		if states[i] != tier.Ready {
			if _, w := t.owners.look(key); w == writing {
				states[i] = tier.Filling
			}
		}
	}
	return nil
}

// Retain pins the block against removal by this process; see the package's comment for others.
func (t *Tier) Retain(ctx context.Context, key block.Key) (bool, error) {
	if err := t.enter(ctx); err != nil {
		return false, err
	}
	defer t.leave()
	// Pinned before it is looked at: whoever removes files looks at the pins first.
	if !t.owners.pin(key) {
		t.count.misses.Add(1)
		return false, nil
	}
	path := blockPath(dirOf(t.dirs, key).root, key)
	info, err := t.fs.Stat(path)
	if err == nil && info.Bytes == t.image {
		t.count.retained.Add(1)
		t.count.hits.Add(1)
		t.touch(path, info)
		return true, nil
	}
	t.unpin(key)
	if err == nil || gone(err) {
		t.count.misses.Add(1)
		return false, nil
	}
	return false, t.fail(fmt.Errorf("retain block %s: %w", key, err))
}

// Release undoes one Retain.
func (t *Tier) Release(key block.Key) {
	t.unpin(key)
	t.count.retained.Add(-1)
}

func (t *Tier) unpin(key block.Key) {
	if t.owners.unpin(key) {
		t.space.released()
	}
}

// touch renews a block's hotness if that is old. It is no reason for a hit to fail.
func (t *Tier) touch(path string, info Info) {
	now := t.clock.Now()
	if now.Sub(info.Modified) < t.cfg.TouchAfter {
		return
	}
	if err := t.fs.SetTime(path, now); err != nil && !gone(err) {
		t.count.errors.Add(1)
	}
}

// fail counts an operation that failed for another reason than a miss.
func (t *Tier) fail(err error) error {
	t.count.errors.Add(1)
	return err
}

// Stats returns what was counted. Blocks and Bytes grow for a while after Open where the directories are so large or so
// slow that counting their files took longer than Open waits.
func (t *Tier) Stats() tier.Stats {
	n, c := t.space.blocks(), &t.count
	return tier.Stats{
		Blocks: n, Bytes: n * t.image, CapacityBytes: t.cfg.MaxBytes,
		Hits: c.hits.Load(), Misses: c.misses.Load(),
		Puts: c.puts.Load(), Evictions: c.evictions.Load(),
		Corrupt: c.corrupt.Load(), Errors: c.errors.Load(),
		ReadBytes: c.readBytes.Load(), WrittenBytes: c.writtenBytes.Load(),
		Retained: c.retained.Load(), Quarantined: c.quarantined.Load(), Swept: c.swept.Load(),
	}
}
