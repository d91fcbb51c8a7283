package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// Pin pins blocks for all processes that use the directories: see tier.Pinner. It waits, until ctx
// ends, for processes that are opening a directory. Other processes that evict blocks read the list
// of pins before each eviction. If one of them has evicted a block meanwhile, Pin returns
// ErrNotFound.
func (t *Tier) Pin(ctx context.Context, keys []block.Key) error {
	if t.cfg.ReadOnly {
		return fmt.Errorf("pin blocks: %w", errReadOnly)
	}
	if err := t.beginOp(ctx); err != nil {
		return err
	}
	defer t.endOp()
	n, err := t.Retain(ctx, keys)
	defer func() { t.Release(keys[:n]) }()
	if err == nil && n < len(keys) {
		err = fmt.Errorf("block %s is not in the tier: %w", keys[n], errdefs.ErrNotFound)
	}
	for d, keys := range t.byDir(keys) {
		if err == nil {
			err = t.pin(ctx, d, keys)
		}
	}
	if err != nil {
		return fmt.Errorf("pin blocks: %w", blockdir.WriteError(err))
	}
	return nil
}

// byDir groups keys by their directories.
func (t *Tier) byDir(keys []block.Key) map[*dir][]block.Key {
	by := make(map[*dir][]block.Key)
	for _, key := range keys {
		d := dirOf(t.dirs, key)
		by[d] = append(by[d], key)
	}
	return by
}

// pin pins blocks of one directory, which the caller has retained.
func (t *Tier) pin(ctx context.Context, d *dir, keys []block.Key) error {
	a := d.area
	limit := blockdir.PinLimit{Formats: t.formats, Bound: a.bound, Has: func(key block.Key) (bool, error) { return stored(d, key) }}
	for _, other := range a.dirs {
		if other != d {
			t.notePins(other)
			limit.Others += other.pins.Total(t.formats).Bytes
		}
		if a.shared() {
			n, err := pinnedBeside(t.cfg.FS, other.root)
			if err != nil {
				return err
			}
			limit.Others += n
		}
	}
	for _, key := range keys {
		err := syncFile(d, blockName(key)) // without verifying the block
		if err == nil {
			err = t.syncName(d, key)
		}
		if err != nil && !blockdir.Gone(err) {
			return err
		}
	}
	return blockdir.WithLock(ctx, t.clock, d, func() error {
		var added []block.Key
		err := t.updatePins(d, func(set blockdir.PinSet) error {
			added = slices.DeleteFunc(slices.Clone(keys), func(key block.Key) bool { return set[key] })
			return limit.Add(set, keys)
		})
		if err != nil {
			return err
		}
		for _, key := range keys {
			if has, err := stored(d, key); !has {
				return errors.Join(fmt.Errorf("another process has removed block %s: %w", key, errdefs.ErrNotFound), err,
					t.updatePins(d, func(set blockdir.PinSet) error { return removePins(set, added) }))
			}
		}
		return nil
	})
}

// stored reports whether a directory has a file with the name of the block.
func stored(d dirfs.Dir, key block.Key) (bool, error) {
	_, err := d.Stat(blockName(key))
	if blockdir.Gone(err) {
		return false, nil
	}
	return err == nil, err
}

func removePins(set blockdir.PinSet, keys []block.Key) error {
	for _, key := range keys {
		delete(set, key)
	}
	return nil
}

// pinnedBeside returns the number of pinned bytes in the other directories of blocks in the same
// parent directory.
func pinnedBeside(fsys dirfs.FS, root string) (n int64, err error) {
	path := filepath.Dir(root)
	parent, err := fsys.OpenDir(path)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, parent.Close()) }()
	names, err := parent.ReadDir(".")
	for _, name := range names {
		if name == filepath.Base(root) {
			continue
		}
		d, err := openFolder(fsys, parent, path+"/"+name, name)
		if errors.Is(err, errNoFolder) {
			continue
		}
		if err != nil {
			return 0, err
		}
		if m, err := blockdir.ReadMarker(d, blockdir.Files); err == nil {
			set, _ := blockdir.ReadPins(d) // a list that cannot be read counts with its intact entries
			n += set.Bytes(m.Formats())
		}
		if err := d.Close(); err != nil {
			return 0, err
		}
	}
	return n, err
}

// Unpin removes the pins of blocks for all processes: see tier.Pinner.
func (t *Tier) Unpin(ctx context.Context, keys []block.Key) error {
	if t.cfg.ReadOnly {
		return fmt.Errorf("unpin blocks: %w", errReadOnly)
	}
	if err := t.beginOp(ctx); err != nil {
		return err
	}
	defer t.endOp()
	for d, keys := range t.byDir(keys) {
		err := blockdir.WithLock(ctx, t.clock, d, func() error {
			return t.updatePins(d, func(set blockdir.PinSet) error { return removePins(set, keys) })
		})
		if err != nil {
			return fmt.Errorf("unpin blocks: %w", blockdir.WriteError(err))
		}
	}
	return nil
}

// updatePins changes the pins of a directory. The caller holds the directory's lock.
func (t *Tier) updatePins(d *dir, change func(set blockdir.PinSet) error) error {
	unpinned, err := d.pins.Update(d, change)
	if unpinned {
		d.area.space.notifyReleased()
	}
	return err
}

// refreshPins reads the pins of a directory if another process has changed them. The intact entries
// of a damaged list stay in force.
func (t *Tier) refreshPins(d *dir) error {
	unpinned, err := d.pins.Refresh(d)
	if unpinned && d.area != nil {
		d.area.space.notifyReleased()
	}
	if errors.Is(err, errdefs.ErrCorrupt) {
		t.count.errors.Add(1)
		d.pinsErr.Store(&err)
		return nil
	}
	return err
}

// checkUnpinned returns ErrPinned if the block is pinned.
func (t *Tier) checkUnpinned(d *dir, key block.Key) error {
	if err := t.refreshPins(d); err != nil {
		return err
	}
	if d.pins.Has(key) {
		return blockdir.ErrPinned
	}
	return nil
}

// notePins is refreshPins. It counts an error.
func (t *Tier) notePins(d *dir) {
	if err := t.refreshPins(d); err != nil {
		t.count.errors.Add(1)
	}
}

// dropPatience limits the wait for the directory's lock when the pin of a damaged block is removed.
const dropPatience = time.Second

// dropPin removes the pin of a damaged block. If that fails the pin stays, and holds for the block
// when it is stored again.
func (t *Tier) dropPin(d *dir, key block.Key) {
	// d.pins lacks a new pin while the key is locked.
	if set, err := blockdir.ReadPins(d); !set[key] {
		if err != nil {
			t.count.errors.Add(1)
		}
		return
	}
	ctx, cancel := context.WithTimeout(t.ctx, dropPatience)
	defer cancel()
	err := blockdir.WithLock(ctx, t.clock, d, func() error {
		return t.updatePins(d, func(set blockdir.PinSet) error { return removePins(set, []block.Key{key}) })
	})
	if err != nil {
		t.count.errors.Add(1)
	}
}

// Pinned is the result of Pin and Unpin.
type Pinned = blockdir.Pinned

// Errors of pinned blocks, of this package and of package log.
var (
	ErrPinned   = blockdir.ErrPinned   // a pinned block is not removed; it wraps ErrBusy
	ErrPinLimit = blockdir.ErrPinLimit // too many bytes or blocks are pinned; it wraps ErrNoSpace
)

// Pin pins the selected blocks of a directory durably: tiers and GC do not evict them, and Remove
// refuses them. boundBytes is the bound with which tiers open the directory, of which half may be
// pinned. If it is zero, it is the number of bytes in the directory. Pin returns ErrPinLimit, and
// pins nothing, if the blocks exceed the limit. It returns ErrBusy, and names the holder, if a
// process of this host has the directory open for writing. The pins of blocks in Pinned.Keys have
// changed; others had a pin.
func Pin(ctx context.Context, dir string, sel Selection, boundBytes int64) (Pinned, error) {
	return pin(ctx, dirfs.OS(), dir, sel, boundBytes)
}

func pin(ctx context.Context, fsys dirfs.FS, path string, sel Selection, boundBytes int64) (p Pinned, err error) {
	err = changePins(ctx, fsys, path, "pin", &p, func(d *existing, set blockdir.PinSet) (keys []block.Key, err error) {
		matches, all := sel.Matcher(&d.marker), Totals{}
		for b := range buckets {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			stored, _, err := listBucket(d, byte(b))
			if err != nil {
				return nil, err
			}
			addTotals(stored, d.formats, &all, make([]Totals, len(d.formats)))
			found, err := d.matching(stored, matches)
			if err != nil {
				return nil, err
			}
			for _, e := range found {
				if err := syncFile(d, blockName(e.Key)); err != nil {
					return nil, err
				}
				keys = append(keys, e.Key)
			}
			if len(found) > 0 {
				if _, err := blockdir.SyncFolder(d, bucketName(byte(b))); err != nil {
					return nil, err
				}
			}
		}
		if boundBytes == 0 {
			boundBytes = all.Bytes
		}
		limit := blockdir.PinLimit{Formats: d.formats, Bound: boundBytes, Has: func(key block.Key) (bool, error) { return stored(d, key) }}
		return keys, limit.Add(set, keys)
	})
	return p, err
}

// matching returns the blocks of keys that match, with the errors of files that cannot be examined.
func (d *existing) matching(keys []block.Key, matches func(*blockdir.Entry) bool) (found []Entry, err error) {
	var errs []error
	for _, key := range keys {
		info, err := d.Stat(blockName(key))
		if e := (Entry{Key: key, Bytes: info.Bytes, Modified: info.Modified, Group: d.formats.Group(key)}); err == nil && matches(&e) {
			found = append(found, e)
		} else if err != nil && !blockdir.Gone(err) {
			errs = append(errs, fmt.Errorf("block %s: %w", key, err))
		}
	}
	return found, joinFew(errs)
}

func syncFile(d dirfs.Dir, name string) error {
	f, err := d.Open(name, os.O_RDONLY)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Unpin removes the pins of the selected blocks of a directory durably. It returns ErrBusy, and
// names the holder, if a process of this host has the directory open for writing.
func Unpin(ctx context.Context, dir string, sel Selection) (Pinned, error) {
	return unpin(ctx, dirfs.OS(), dir, sel)
}

func unpin(ctx context.Context, fsys dirfs.FS, path string, sel Selection) (p Pinned, err error) {
	err = changePins(ctx, fsys, path, "unpin", &p, func(d *existing, set blockdir.PinSet) (keys []block.Key, err error) {
		matches := sel.Matcher(&d.marker)
		for key := range set {
			info, err := d.Stat(blockName(key))
			if err != nil && !blockdir.Gone(err) {
				return nil, err
			}
			if matches(&Entry{Key: key, Modified: info.Modified, Group: d.formats.Group(key)}) {
				delete(set, key)
				keys = append(keys, key)
			}
		}
		return keys, nil
	})
	return p, err
}

// changePins changes the pins of a directory that no process of this host has open for writing.
func changePins(ctx context.Context, fsys dirfs.FS, path, verb string, p *Pinned, change func(d *existing, set blockdir.PinSet) ([]block.Key, error)) (err error) {
	d, err := openExisting(fsys, path)
	if err != nil {
		return fmt.Errorf("%s blocks of %w", verb, err)
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	err = d.exclusively(ctx, func() error {
		*p, err = blockdir.ChangePins(d, d.formats, func(set blockdir.PinSet) ([]block.Key, error) { return change(d, set) })
		return err
	})
	if err != nil {
		return fmt.Errorf("%s blocks of directory %s: %w", verb, d.root, blockdir.WriteError(err))
	}
	return nil
}
