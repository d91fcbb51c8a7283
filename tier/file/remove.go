package file

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// Selection selects blocks for Remove.
type Selection = blockdir.Selection

// Removed is the result of Remove.
type Removed = tier.Removed

// Remove removes the selected blocks from a directory. When it returns, no process finds them
// again, also after a power failure. Pinned blocks stay: Removed.Left has an error that wraps
// ErrBusy. It returns ErrBusy, and names the holder, if a process of this host has the directory
// open for writing. No process can open it for writing meanwhile; a process that only reads may
// have a block open, and reads it to the end.
func Remove(ctx context.Context, dir string, sel Selection) (Removed, error) {
	return remove(ctx, dirfs.OS(), dir, sel)
}

func remove(ctx context.Context, fsys dirfs.FS, path string, sel Selection) (r Removed, err error) {
	d, err := openExisting(fsys, path)
	if err != nil {
		return r, fmt.Errorf("remove blocks of %w", err)
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	err = d.exclusively(ctx, func() error { return d.remove(ctx, &sel, &r) })
	if err != nil {
		return r, fmt.Errorf("remove blocks of directory %s: %w", d.root, blockdir.WriteError(err))
	}
	return r, nil
}

// exclusively calls f while no process of this host has the directory open for writing, or opens
// it. It returns ErrBusy, and names the holder, if a process has it open.
func (d *existing) exclusively(ctx context.Context, f func() error) error {
	return blockdir.WithLock(ctx, clockwork.NewRealClock(), d, func() error {
		switch s, err := liveSession(d); {
		case s != "":
			return fmt.Errorf("%s has it open, and blocks may be in use: %w", blockdir.Holder(d, s+"/"+sessionLock), errdefs.ErrBusy)
		case err != nil:
			return err
		}
		return f()
	})
}

// remove removes the selected blocks. The caller holds the directory's lock.
func (d *existing) remove(ctx context.Context, sel *Selection, r *Removed) error {
	matches := sel.Matcher(&d.marker)
	pins, err := blockdir.ReadPins(d)
	if err != nil && !errors.Is(err, errdefs.ErrCorrupt) {
		return err
	}
	removals := blockdir.NewRemovals(d, 0)
	defer removals.Flush()
	var errs []error
	pinned := 0
	for b := range buckets {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		keys, _, err := listBucket(d, byte(b))
		if err != nil {
			errs = append(errs, err)
		}
		before := len(r.Keys)
		found, err := d.matching(keys, matches)
		if err != nil {
			errs = append(errs, err)
		}
		for _, e := range found {
			if pins[e.Key] {
				pinned++
				continue
			}
			if err := d.Remove(blockName(e.Key)); err == nil {
				r.Keys = append(r.Keys, e.Key)
				r.Bytes += e.Bytes
				removals.Add(time.Now(), e.Key, sel.Cause())
			} else if !blockdir.Gone(err) {
				errs = append(errs, fmt.Errorf("block %s: %w", e.Key, err))
			}
		}
		if len(r.Keys) > before {
			if _, err := blockdir.SyncFolder(d, bucketName(byte(b))); err != nil {
				return err
			}
		}
	}
	r.Left = joinFew(append(blockdir.Staying(0, pinned), errs...))
	return nil
}

// Remove implements tier.Remover, under every policy.
func (t *Tier) Remove(ctx context.Context, keys []block.Key) (r Removed, err error) {
	if t.cfg.ReadOnly {
		return r, fmt.Errorf("remove blocks: %w", errReadOnly)
	}
	if err := t.beginOp(ctx); err != nil {
		return r, err
	}
	defer t.endOp()
	type folder struct {
		d      *dir
		bucket byte
	}
	changed := make(map[folder]bool)
	var errs []error
	busy, pinned := 0, 0
	for _, key := range keys {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
			break
		}
		d := dirOf(t.dirs, key)
		switch derr := t.removeIdle(d, key); {
		case derr == nil:
			changed[folder{d, key[0]}] = true
			r.Keys = append(r.Keys, key)
			r.Bytes += t.formats.ImageBytes(key)
			d.removals.Add(t.clock.Now(), key, tier.CauseRequest)
		case errors.Is(derr, blockdir.ErrPinned):
			pinned++
		case errors.Is(derr, errdefs.ErrBusy):
			busy++
		case !blockdir.Gone(derr):
			errs = append(errs, fmt.Errorf("block %s: %w", key, blockdir.WriteError(derr)))
		}
	}
	for _, d := range t.dirs {
		d.removals.Flush()
	}
	for f := range changed {
		if _, serr := blockdir.SyncFolder(f.d, bucketName(f.bucket)); serr != nil {
			err = errors.Join(err, blockdir.WriteError(serr))
		}
	}
	if r.Left = joinFew(append(blockdir.Staying(busy, pinned), errs...)); err != nil {
		return r, t.fail(fmt.Errorf("remove blocks: %w", err))
	}
	return r, nil
}

// removeIdle removes a block. It returns ErrPinned, or ErrBusy if the block is in use.
func (t *Tier) removeIdle(d *dir, key block.Key) error {
	if err := t.checkUnpinned(d, key); err != nil {
		return err
	}
	if !t.locks.TryLockRemoving(key) {
		return errdefs.ErrBusy
	}
	defer t.locks.Unlock(key)
	return t.removeName(d, key, func() error { return d.Remove(blockName(key)) })
}
