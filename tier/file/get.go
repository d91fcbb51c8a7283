package file

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/internal/usage"
)

// Get reads and verifies the block. It returns only when no read is in progress, however long that
// takes: see the package comment.
func (t *Tier) Get(ctx context.Context, key block.Key, dst mem.Extent) error {
	return t.getInto(ctx, key, dst, true)
}

// Read reads the block like Get, but without verifying the shards. It checks length, header,
// identity and key. A block that fails goes to quarantine.
func (t *Tier) Read(ctx context.Context, key block.Key, dst mem.Extent) error {
	return t.getInto(ctx, key, dst, false)
}

func (t *Tier) getInto(ctx context.Context, key block.Key, dst mem.Extent, whole bool) error {
	buf, err := blockdir.Image(t.formats, key, dst)
	if err != nil {
		return fmt.Errorf("read block %s: %w", key, err)
	}
	if err := t.beginOp(ctx); err != nil {
		return err
	}
	defer t.endOp()
	return t.countRead(key, int64(len(buf)), t.get(ctx, dirOf(t.dirs, key), key, buf, whole))
}

// countRead counts a read of n bytes that ended with err, and returns err with the key.
func (t *Tier) countRead(key block.Key, n int64, err error) error {
	switch {
	case err == nil:
		t.count.hits.Add(1)
		t.count.readBytes.Add(n)
		return nil
	case errors.Is(err, tier.ErrNotDirect) || errors.Is(err, tier.ErrDirectFailed): // the caller will call Read
	case errors.Is(err, errdefs.ErrCorrupt):
		t.count.corrupt.Add(1)
		t.count.misses.Add(1)
	case errors.Is(err, block.ErrVersion):
		t.count.newer.Add(1)
		t.count.misses.Add(1)
		return fmt.Errorf("read block %s: %w: %w", key, errdefs.ErrNotFound, err)
	case blockdir.Gone(err):
		t.count.misses.Add(1)
		pinned, _ := t.locks.State(key)
		t.noteMissing(key, pinned)
		return fmt.Errorf("read block %s: %w: %w", key, errdefs.ErrNotFound, err)
	default:
		t.count.errors.Add(1)
		// The next Put checks the file again, and replaces it if it is still unreadable.
		t.proofs.drop(key)
	}
	return fmt.Errorf("read block %s: %w", key, err)
}

func (t *Tier) get(ctx context.Context, d *dir, key block.Key, buf []byte, whole bool) error {
	f, err := d.Open(blockName(key), os.O_RDONLY)
	if errors.Is(err, dirfs.ErrIrregular) {
		info, serr := d.Stat(blockName(key))
		if serr != nil {
			return serr
		}
		return errors.Join(asCorrupt(err), t.setAside(ctx, d, key, info))
	}
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		if err = t.read(ctx, f, info, key, buf, whole); err == nil {
			if whole {
				t.proofs.add(key, info, false)
			}
			t.touch(d, key, info)
		} else if errors.Is(err, errdefs.ErrCorrupt) {
			// before Close, so that no other file can get the same inode
			err = errors.Join(err, t.setAside(ctx, d, key, info))
		}
	}
	if cerr := f.Close(); cerr != nil {
		// The data are verified, so an error of Close does not matter.
		t.count.errors.Add(1)
	}
	return err
}

// asCorrupt wraps ErrIrregular in ErrCorrupt: only a regular file is a block.
func asCorrupt(err error) error {
	if errors.Is(err, dirfs.ErrIrregular) {
		return fmt.Errorf("%w: %w", errdefs.ErrCorrupt, err)
	}
	return err
}

// checkInfo returns ErrCorrupt if a file cannot be the block, by its type or length.
func (t *Tier) checkInfo(key block.Key, info dirfs.Info) error {
	if !info.Regular() {
		return fmt.Errorf("%w: %w: it is a %s", errdefs.ErrCorrupt, dirfs.ErrIrregular, info.Kind())
	}
	if n := t.formats.ImageBytes(key); info.Bytes != n || n == 0 {
		return fmt.Errorf("the file has %d bytes, an image %d: %w", info.Bytes, n, errdefs.ErrCorrupt)
	}
	return nil
}

// read fills buf and verifies the whole image or only its header. It returns ErrCorrupt for wrong
// bytes, except for block.ErrVersion.
func (t *Tier) read(ctx context.Context, f dirfs.File, info dirfs.Info, key block.Key, buf []byte, whole bool) error {
	if err := t.checkInfo(key, info); err != nil {
		if _, herr := readHeader(f); errors.Is(herr, block.ErrVersion) {
			return herr // images of other versions may have other lengths
		}
		return err
	}
	if err := dirfs.ReadFull(ctx, f, buf, 0); err != nil {
		return err
	}
	verify := t.formats.Verify
	if !whole {
		verify = t.formats.VerifyHeader
	}
	err := verify(buf, key)
	if err != nil && !errors.Is(err, errdefs.ErrCorrupt) && !errors.Is(err, block.ErrVersion) {
		// The header is that of another block, which does not belong under this name.
		err = fmt.Errorf("%w: %w", errdefs.ErrCorrupt, err)
	}
	return err
}

// setAside moves a corrupt file to quarantine, unless the name belongs to another file now.
func (t *Tier) setAside(ctx context.Context, d *dir, key block.Key, bad dirfs.Info) error {
	if t.cfg.ReadOnly {
		return nil
	}
	if err := t.locks.Lock(ctx, t.ctx.Done(), key, usage.Removing); err != nil {
		return fmt.Errorf("quarantine it: %w", err)
	}
	defer t.locks.Unlock(key)
	return t.quarantineFile(d, key, bad)
}

// quarantineFile implements setAside. The caller has locked the key.
func (t *Tier) quarantineFile(d *dir, key block.Key, bad dirfs.Info) error {
	now, err := d.Stat(blockName(key))
	if blockdir.Gone(err) || err == nil && now.Inode != bad.Inode {
		return nil
	}
	if err == nil {
		t.dropPin(d, key)
		err = t.removeName(d, key, func() error { return t.moveToQuarantine(d, key, bad) })
	}
	if err == nil {
		d.noteRemoval(t.clock.Now(), key, tier.CauseDamage)
	}
	if err != nil && !blockdir.Gone(err) {
		return fmt.Errorf("quarantine it: %w", err)
	}
	return nil
}

// removeName calls op, which removes or renames the block's file, and updates the count of the
// folder.
func (t *Tier) removeName(d *dir, key block.Key, op func() error) error {
	t.proofs.drop(key)
	t.times.forget(key)
	t.forgetDirect(d, key)
	b, a := &d.buckets[key[0]], d.area
	a.space.beginChange(b)
	err := op()
	t.forgetDirect(d, key) // a reader may have opened the file meanwhile
	if err == nil || blockdir.Gone(err) {
		t.cfg.Events.Removed(Name, key)
	}
	switch {
	case err == nil:
		a.space.endChange(b, -1, t.formats.ImageBytes(key))
	case blockdir.Gone(err):
		a.space.endChange(b, 0, 0)
		a.space.markStale()
	default:
		a.space.endChange(b, 0, 0)
	}
	return err
}

// moveToQuarantine moves a corrupt file to quarantine. If that fails it removes the file, because a
// corrupt block must not keep its name.
func (t *Tier) moveToQuarantine(d *dir, key block.Key, bad dirfs.Info) error {
	if t.cfg.QuarantineMax < 0 {
		return d.Remove(blockName(key))
	}
	if _, err := toQuarantine(d, t.clock.Now(), key, bad); err != nil {
		if blockdir.Gone(err) {
			return err
		}
		if rerr := d.Remove(blockName(key)); rerr != nil {
			return errors.Join(err, rerr)
		}
		t.count.errors.Add(1)
		return nil
	}
	t.count.quarantined.Add(1)
	if err := blockdir.TrimQuarantine(d, t.cfg.QuarantineMax); err != nil {
		t.count.errors.Add(1)
	}
	return nil
}
