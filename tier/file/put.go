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
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/internal/usage"
)

// Put writes the block, unless it is there, whole. When it returns nil the block can be found, and is as durable as the policy
// promises, whoever has written it. A file that is there is read and verified, unless this process has done so; what is
// damaged is set aside and written anew, and what cannot be read is left until it is replaced. One of another format version stays,
// and the error wraps ErrExists: who reads that version may have been told that it is durable.
//
// It waits while another Put writes the same block, and, at the bound, while every block is
// retained or cannot be removed, for roomPatience at most; the error then wraps ErrBusy. Where the
// disk is full it makes room within the bound; without a bound, and where others take that room,
// the error wraps ErrNoSpace. After either, writing pauses: see Stats. A write that has begun is
// finished whatever becomes of ctx.
func (t *Tier) Put(ctx context.Context, key block.Key, src mem.Extent) error {
	image, err := blockdir.Image(t.formats, key, src)
	if err != nil {
		return fmt.Errorf("write block %s: %w", key, err)
	}
	if err := t.enter(ctx); err != nil {
		return err
	}
	defer t.leave()
	if err := t.put(ctx, key, image); err != nil {
		return t.fail(fmt.Errorf("write block %s: %w", key, err))
	}
	return nil
}

func (t *Tier) put(ctx context.Context, key block.Key, image []byte) error {
	if t.cfg.ReadOnly {
		return errReadOnly
	}
	if err := t.formats.Verify(image, key); err != nil {
		return err
	}
	if err := t.locks.Lock(ctx, t.ctx.Done(), key, usage.Writing); err != nil {
		return err
	}
	d := dirOf(t.dirs, key)
	defer func() {
		t.locks.Unlock(key)
		d.area.space.released() // until now the block could not make room for another
	}()
	for try := 1; ; try++ {
		there, over, err := t.look(ctx, d, key)
		if there || err != nil {
			return err
		}
		err = t.write(ctx, d, key, image, over)
		if err == nil {
			if over != nil {
				t.count.replaced.Add(1)
			}
			t.count.puts.Add(1)
			t.count.writtenBytes.Add(int64(len(image)))
			return nil
		}
		// Another process has stored it meanwhile, maybe durably, as ours may not be; or what is no block came in between.
		if !errors.Is(err, unix.EEXIST) || try == lookTries {
			if over != nil {
				err = errors.Join(err, over.cause)
			}
			return err
		}
	}
}

// lookTries is how often a Put looks at what another process has put in the place of what it looked at before.
const lookTries = 4

// unreadable is a file that has a block's name and could not be read or made durable.
type unreadable struct {
	info  dirfs.Info
	cause error
}

// look says whether the block is there, and makes it as durable as the policy promises. It looks at the file as a Get would.
// What is no block it sets aside. What cannot be read, maybe for a moment only, it leaves there until over is replaced: another
// process may have been told that it is durable.
func (t *Tier) look(ctx context.Context, d *dir, key block.Key) (there bool, over *unreadable, err error) {
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
		return false, nil, fmt.Errorf("it is there, and stays as it is: %v: %w", err, errdefs.ErrExists) //nolint:errorlint // as ErrMismatch it would say that src is not the block
	case errors.Is(err, errdefs.ErrCorrupt):
		t.count.corrupt.Add(1)
		t.count.replaced.Add(1)
		return false, nil, t.quarantineFile(d, key, info)
	}
	t.count.errors.Add(1)
	return false, &unreadable{info, err}, nil
}

// examine reads and verifies the file of a block, and describes it: as it is now, or as it was found wrong.
func (t *Tier) examine(ctx context.Context, d *dir, key block.Key, info dirfs.Info) (dirfs.Info, error) {
	buf, _ := t.buffers.Get().(*[]byte)
	if buf == nil {
		b := make([]byte, t.formats.MaxImageBytes())
		buf = &b
	}
	defer t.buffers.Put(buf)
	f, err := d.Open(blockName(key), os.O_RDONLY)
	if err != nil {
		return info, irregular(err)
	}
	now, err := f.Stat()
	if err == nil {
		info = now
		err = t.read(ctx, f, info, key, (*buf)[:t.formats.ImageBytes(key)], mem.Extent{}, true)
	}
	if err == nil {
		t.proofs.add(key, info, false)
	}
	return info, errors.Join(err, f.Close())
}

// makeDurable syncs a file that is there, whoever has written it, and its name.
func (t *Tier) makeDurable(d *dir, key block.Key, info dirfs.Info) error {
	name := blockName(key)
	f, err := d.Open(name, os.O_RDONLY)
	if err != nil {
		return err
	}
	now, err := f.Stat()
	if err == nil && now.Inode != info.Inode {
		err = unix.ESTALE // another's by now
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

// syncName makes the name of a block's file durable, and that of its folder.
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

// roomTries is how often a write makes room on a disk that is full before it gives up.
const roomTries = 4

// write brings the image under its name, in the place of over if that is given, or leaves all as it was.
func (t *Tier) write(ctx context.Context, d *dir, key block.Key, image []byte, over *unreadable) error {
	a := d.area
	if err := a.pause.Err(t.clock.Now()); errors.Is(err, errdefs.ErrNoSpace) {
		return err
	}
	for try := 1; ; try++ {
		if err := a.reserve(ctx, int64(len(image))); err != nil {
			return err
		}
		fulls := a.space.timesFull()
		err := blockdir.WriteError(t.writeOnce(ctx, d, key, image, over))
		switch {
		case err == nil:
			a.pause.End()
			if a.space.commit(int64(len(image))) {
				a.collectSoon()
			}
			return nil
		case !errors.Is(err, errdefs.ErrNoSpace):
			a.space.cancel(int64(len(image)))
			return err
		}
		full := try == roomTries || !a.space.shrink(t.clock.Now(), fulls, err)
		a.space.cancel(int64(len(image)))
		if full {
			a.pause.Begin(t.clock.Now(), err)
			return err
		}
		t.count.errors.Add(1)
	}
}

// writeOnce writes a temporary file and gives it its name. It tries again where the folder of
// temporary files was removed, with the directory or without: another host, which locks do not
// reach, takes this session for that of a dead process.
func (t *Tier) writeOnce(ctx context.Context, d *dir, key block.Key, image []byte, over *unreadable) error {
	s := d.session.Load()
	info, err := t.publish(d, s, key, image, over)
	if blockdir.Gone(err) {
		if rerr := d.renew(ctx, &t.cfg, s); rerr != nil {
			return errors.Join(err, rerr)
		}
		t.count.errors.Add(1)
		d.area.space.missing() // of the directory, or of its folders
		info, err = t.publish(d, d.session.Load(), key, image, over)
	}
	if err == nil {
		t.proofs.add(key, info, t.cfg.Fsync == FsyncFile)
	}
	return err
}

func (t *Tier) publish(d *dir, s *session, key block.Key, image []byte, over *unreadable) (dirfs.Info, error) {
	temp, sync, name := s.temp(), t.cfg.Fsync == FsyncFile, blockName(key)
	// What is replaced may be durable: then what comes in its place is to be, under either name.
	info, err := blockdir.WriteFile(d, temp, image, sync || over != nil)
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
	d.area.space.begin(b)
	err = d.Rename(temp, name, replace)
	if blockdir.Gone(err) {
		if err = blockdir.Mkdir(d, bucketName(key[0])); err == nil {
			err = d.Rename(temp, name, replace)
		}
	}
	if err != nil {
		d.area.space.end(b, 0, 0)
		return info, errors.Join(err, blockdir.Remove(d, temp))
	}
	if sync {
		if err := t.syncName(d, key); err != nil {
			// It could be found but might not survive: a Put that fails leaves nothing of its own, but in the place of what may
			// have been durable. That either is there after a power failure, or this, which is synced.
			if now, serr := d.Stat(name); !replace && serr == nil && now.Inode == info.Inode {
				err = errors.Join(err, blockdir.Remove(d, name))
			}
			d.area.space.end(b, 0, 0)
			return info, err
		}
	}
	d.area.space.end(b, added, int64(len(image)))
	d.area.late.add(candidate{key, slices.Index(d.area.dirs, d), info.Modified, info.Modified})
	return info, nil
}

// Delete removes the block. It waits while somebody writes or removes it.
func (t *Tier) Delete(ctx context.Context, key block.Key) error {
	if err := t.enter(ctx); err != nil {
		return err
	}
	defer t.leave()
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
	if err := t.locks.Lock(ctx, t.ctx.Done(), key, usage.Removing); err != nil {
		return err
	}
	defer t.locks.Unlock(key)
	// Looked at by the owner: from here on nobody can pin it.
	if pinned, _ := t.locks.State(key); pinned {
		return fmt.Errorf("it is retained: %w", errdefs.ErrBusy)
	}
	d := dirOf(t.dirs, key)
	return blockdir.WriteError(t.unname(d, key, func() error { return d.Remove(blockName(key)) }))
}
