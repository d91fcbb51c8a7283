package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/internal/usage"
)

// Put stores the block. When it returns nil, the block can be found and is as durable as the policy
// requires, regardless of which process wrote it. Put reads and verifies an existing file, unless
// this process has already done so. It moves a damaged file to quarantine and writes a new one. An
// unreadable file stays until it is replaced. A file of another format version stays, and Put
// returns ErrExists, because the block is durable for processes of that version.
//
// Put waits while another Put writes the same block. At the bound it waits for space. It returns
// ErrBusy if ctx ends, or if eviction fails for spacePatience. On a full disk it evicts blocks of
// the tier. It returns ErrNoSpace if the tier has no bound, or if other programs take the freed
// space. After either error writes pause: see Stats. A running write is finished even if ctx ends.
func (t *Tier) Put(ctx context.Context, key block.Key, src mem.Extent) error {
	image, err := blockdir.Image(t.formats, key, src)
	if err != nil {
		return fmt.Errorf("write block %s: %w", key, err)
	}
	if err := t.beginOp(ctx); err != nil {
		return err
	}
	defer t.endOp()
	if err = t.formats.Verify(image, key); err == nil {
		err = t.put(ctx, key, &content{image: image})
	}
	if err != nil {
		return t.fail(fmt.Errorf("write block %s: %w", key, err))
	}
	return nil
}

func (t *Tier) put(ctx context.Context, key block.Key, c *content) error {
	if t.cfg.ReadOnly {
		return errReadOnly
	}
	if err := t.locks.Lock(ctx, t.ctx.Done(), key, usage.Writing); err != nil {
		return err
	}
	d := dirOf(t.dirs, key)
	defer func() {
		t.locks.Unlock(key)
		d.area.space.notifyReleased() // the block can be evicted now
	}()
	for try := 1; ; try++ {
		there, over, err := t.checkStored(ctx, d, key)
		if there {
			t.cfg.Events.Stored(Name, key)
		}
		if there || err != nil {
			return err
		}
		err = t.write(ctx, d, key, c, over)
		if err == nil {
			if over != nil {
				t.count.replaced.Add(1)
			}
			t.count.puts.Add(1)
			t.count.writtenBytes.Add(c.bytes())
			c.written = true
			t.cfg.Events.Stored(Name, key)
			return nil
		}
		// Another process has stored the block, perhaps less durably than the policy requires. Or
		// the name belongs to a file that is not a block.
		if !errors.Is(err, unix.EEXIST) || try == checkTries {
			if over != nil {
				err = errors.Join(err, over.cause)
			}
			return err
		}
	}
}

// checkTries is the number of times that Put checks a file that other processes keep replacing.
const checkTries = 4

// unreadable is a file with a block's name that could not be read or made durable.
type unreadable struct {
	info  dirfs.Info
	cause error
}

// checkStored reports whether the block is stored, and makes it as durable as the policy requires.
// It checks the file like Get, and moves a corrupt file to quarantine. It returns an unreadable
// file as over. That file stays until it is replaced, because the failure may be temporary, and the
// block durable for another process.
func (t *Tier) checkStored(ctx context.Context, d *dir, key block.Key) (there bool, over *unreadable, err error) {
	name := blockName(key)
	info, err := d.Stat(name)
	if blockdir.Gone(err) {
		return false, nil, nil
	}
	if err != nil {
		return false, nil, err
	}
	whole, synced := t.proofs.has(key, info)
	if !whole {
		info, err = t.examine(ctx, d, key, info)
	}
	if err == nil && !synced && t.cfg.Fsync == FsyncFile {
		err = t.makeDurable(d, key, info)
	}
	switch {
	case err == nil:
		t.touch(d, key, info)
		return true, nil, nil
	case blockdir.Gone(err):
		return false, nil, nil
	case ctx.Err() != nil:
		return false, nil, context.Cause(ctx)
	case errors.Is(err, block.ErrVersion):
		t.count.newer.Add(1)
		return false, nil, fmt.Errorf("the file exists and is kept: %v: %w", err, errdefs.ErrExists) //nolint:errorlint // ErrMismatch would mean that src is not the block
	case errors.Is(err, errdefs.ErrCorrupt):
		t.count.corrupt.Add(1)
		t.count.replaced.Add(1)
		return false, nil, t.quarantineFile(d, key, info)
	}
	t.count.errors.Add(1)
	return false, &unreadable{info, err}, nil
}

// examine reads and verifies the file of a block, and returns the Info of that file.
func (t *Tier) examine(ctx context.Context, d *dir, key block.Key, info dirfs.Info) (dirfs.Info, error) {
	buf, _ := t.buffers.Get().(*[]byte)
	if buf == nil {
		b := make([]byte, t.formats.MaxImageBytes())
		buf = &b
	}
	defer t.buffers.Put(buf)
	f, err := d.Open(blockName(key), os.O_RDONLY)
	if err != nil {
		return info, asCorrupt(err)
	}
	now, err := f.Stat()
	if err == nil {
		info = now
		err = t.read(ctx, f, info, key, (*buf)[:t.formats.ImageBytes(key)], true)
	}
	if err == nil {
		t.proofs.add(key, info, false)
	}
	return info, errors.Join(err, f.Close())
}

// makeDurable syncs an existing file and its name.
func (t *Tier) makeDurable(d *dir, key block.Key, info dirfs.Info) error {
	name := blockName(key)
	f, err := d.Open(name, os.O_RDONLY)
	if err != nil {
		return err
	}
	now, err := f.Stat()
	if err == nil && now.Inode != info.Inode {
		err = unix.ESTALE // the file was replaced
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := t.syncName(d, key); err != nil {
		return err
	}
	if now, err = d.Stat(name); err == nil && now.Inode != info.Inode {
		err = unix.ESTALE
	}
	if err == nil {
		t.proofs.add(key, info, true)
	}
	return err
}

// syncName makes the names of a block's file and of its folder durable.
func (t *Tier) syncName(d *dir, key block.Key) error {
	folder, err := blockdir.SyncFolder(d, bucketName(key[0]))
	b := &d.buckets[key[0]]
	if err != nil || b.durable.Load() == folder {
		return err
	}
	if err := blockdir.SyncRoot(d); err != nil {
		return err
	}
	b.durable.Store(folder)
	return nil
}

// fullTries is the number of attempts of a write to free space on a full disk.
const fullTries = 4

// write stores the content under the block's name. It replaces over if that is not nil. On error
// nothing changes.
func (t *Tier) write(ctx context.Context, d *dir, key block.Key, c *content, over *unreadable) error {
	a := d.area
	if err := a.pause.Err(t.clock.Now()); errors.Is(err, errdefs.ErrNoSpace) {
		return err
	}
	for try := 1; ; try++ {
		if err := a.reserve(ctx, c.bytes()); err != nil {
			return err
		}
		fulls := a.space.timesFull()
		err := blockdir.WriteError(t.writeOnce(ctx, d, key, c, over))
		switch {
		case err == nil:
			a.pause.End()
			if a.space.commit(c.bytes()) {
				a.collectSoon()
			}
			return nil
		case !errors.Is(err, errdefs.ErrNoSpace) || c.quiesced != nil:
			a.space.cancel(c.bytes())
			return err
		}
		full := try == fullTries || !a.space.shrink(t.clock.Now(), fulls, err)
		a.space.cancel(c.bytes())
		if full {
			a.pause.Begin(t.clock.Now(), err)
			return err
		}
		t.count.errors.Add(1)
	}
}

// writeOnce writes a temporary file and renames it. It retries once if the temporary folder was
// removed, which another host does if locks do not work between the hosts.
func (t *Tier) writeOnce(ctx context.Context, d *dir, key block.Key, c *content, over *unreadable) error {
	s := d.session.Load()
	info, err := t.publish(ctx, d, s, key, c, over)
	if blockdir.Gone(err) && c.quiesced == nil {
		if rerr := d.renew(ctx, &t.cfg, s); rerr != nil {
			return errors.Join(err, rerr)
		}
		t.count.errors.Add(1)
		d.area.space.markStale() // the directory or its folders
		info, err = t.publish(ctx, d, d.session.Load(), key, c, over)
	}
	if err == nil {
		t.proofs.add(key, info, t.cfg.Fsync == FsyncFile)
	}
	return err
}

func (t *Tier) publish(ctx context.Context, d *dir, s *session, key block.Key, c *content, over *unreadable) (dirfs.Info, error) {
	temp, sync, name := s.temp(), t.cfg.Fsync == FsyncFile, blockName(key)
	// The replaced file may have been durable. Then the new file must be durable too, under either
	// name.
	info, err := t.writeContent(ctx, d, temp, c, sync || over != nil)
	if err != nil {
		return info, err
	}
	info = t.timeNew(d, temp, key, info)
	if sync {
		t.locks.Publish(key)
	}
	replace, added := false, int64(1)
	if over != nil {
		now, err := d.Stat(name)
		if replace = err == nil && now.Inode == over.info.Inode; replace {
			added = 0
		}
	}
	b := &d.buckets[key[0]]
	d.area.space.beginChange(b)
	err = d.Rename(temp, name, replace)
	if blockdir.Gone(err) {
		if err = blockdir.Mkdir(d, bucketName(key[0])); err == nil {
			err = d.Rename(temp, name, replace)
		}
	}
	if err != nil {
		d.area.space.endChange(b, 0, 0)
		return info, errors.Join(err, blockdir.Remove(d, temp))
	}
	if sync {
		if err := t.syncName(d, key); err != nil {
			// The block could be found but might not survive a power failure. A failed Put removes
			// its file, unless it replaced a file that may have been durable: then the old file or
			// this synced one survives.
			if now, serr := d.Stat(name); !replace && serr == nil && now.Inode == info.Inode {
				err = errors.Join(err, blockdir.Remove(d, name))
			}
			d.area.space.endChange(b, 0, 0)
			return info, err
		}
	}
	d.area.space.endChange(b, added, c.bytes())
	d.area.recentCold.add(candidate{key, slices.Index(d.area.dirs, d), info.Modified, info.Modified})
	return info, nil
}

// Delete removes the block. It waits while another operation writes or removes it.
func (t *Tier) Delete(ctx context.Context, key block.Key) error {
	if err := t.beginOp(ctx); err != nil {
		return err
	}
	defer t.endOp()
	err := t.delete(ctx, key)
	if err == nil {
		return nil
	}
	if blockdir.Gone(err) {
		return fmt.Errorf("delete block %s: %w: %w", key, errdefs.ErrNotFound, err)
	}
	if !errors.Is(err, errdefs.ErrBusy) {
		t.count.errors.Add(1)
	}
	return fmt.Errorf("delete block %s: %w", key, err)
}

func (t *Tier) delete(ctx context.Context, key block.Key) error {
	if t.cfg.ReadOnly {
		return errReadOnly
	}
	d := dirOf(t.dirs, key)
	if err := t.checkUnpinned(d, key); err != nil {
		return err
	}
	if err := t.locks.Lock(ctx, t.ctx.Done(), key, usage.Removing); err != nil {
		return err
	}
	defer t.locks.Unlock(key)
	// The key is locked, so it cannot be retained meanwhile.
	if retained, _ := t.locks.State(key); retained {
		return fmt.Errorf("it is retained: %w", errdefs.ErrBusy)
	}
	if err := t.removeName(d, key, func() error { return d.Remove(blockName(key)) }); err != nil {
		return blockdir.WriteError(err)
	}
	d.noteRemoval(t.clock.Now(), key, tier.CauseProgram)
	return nil
}
