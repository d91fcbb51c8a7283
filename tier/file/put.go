package file

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// Put writes the block, unless it is there. When it returns nil the block can be found, and is as durable as the policy
// promises. It waits while another Put writes the same block, and, at the bound, while every block is retained; when ctx
// ends then, the error wraps ErrBusy. A write that has begun is finished whatever becomes of ctx.
func (t *Tier) Put(ctx context.Context, key block.Key, src mem.Extent) error {
	image, err := t.buffer(src)
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
	if err := t.cfg.Format.Verify(image, key); err != nil {
		return err
	}
	if err := t.owners.own(ctx, t.ctx.Done(), key, writing); err != nil {
		return err
	}
	defer func() {
		t.owners.disown(key)
		t.space.released() // until now the block could not make room for another
	}()
	d := dirOf(t.dirs, key)
	path := blockPath(d.root, key)
	info, err := t.fs.Stat(path)
	switch {
	case err == nil && info.Bytes == t.image:
		t.touch(path, info)
		return nil
	case err == nil:
		t.count.corrupt.Add(1)
		if err := t.quarantineFile(d, key, path, info); err != nil {
			return err
		}
	case !gone(err):
		return err
	}
	if err := t.reserve(ctx); err != nil {
		return err
	}
	if err := t.write(d, key, path, image); err != nil {
		return writeError(err)
	}
	t.count.puts.Add(1)
	t.count.writtenBytes.Add(t.image)
	return nil
}

// reserve takes the place of one block, waiting for room until ctx ends.
func (t *Tier) reserve(ctx context.Context) error {
	asked := uint64(math.MaxUint64)
	for {
		ok, freed, wake := t.space.reserve()
		if ok {
			return nil
		}
		// A round of removing is worth its cost only if something was freed since the last.
		if freed != asked {
			t.collectSoon()
			asked = freed
		}
		err := t.waitForRoom(ctx, wake)
		t.space.stopWaiting()
		if err != nil {
			return err
		}
	}
}

func (t *Tier) waitForRoom(ctx context.Context, wake <-chan struct{}) error {
	select {
	case <-wake:
		return nil
	case <-t.ctx.Done():
		return errdefs.ErrClosed
	case <-ctx.Done():
		err := context.Cause(ctx)
		if f := t.failure.Load(); f != nil && *f != nil {
			err = errors.Join(err, *f)
		}
		return fmt.Errorf("all of the %d bytes that the tier may use are taken, and nothing can be removed: %w: %w",
			t.cfg.MaxBytes, errdefs.ErrBusy, err)
	}
}

// write brings the image under its name, or leaves nothing. It uses up the place that was reserved.
func (t *Tier) write(d *dir, key block.Key, path string, image []byte) error {
	temp, sync := d.session.temp(), t.cfg.Fsync == FsyncFile
	if err := writeFile(t.fs, temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, image, sync); err != nil {
		t.space.cancel()
		return err
	}
	b := &d.buckets[key[0]]
	b.scan.RLock()
	defer b.scan.RUnlock()
	made, err := t.name(d, key, temp, path)
	if err != nil {
		t.space.cancel()
		return errors.Join(err, remove(t.fs, temp))
	}
	if sync {
		err = syncDir(t.fs, bucketPath(d.root, key[0]))
		if err == nil && made {
			err = syncDir(t.fs, d.root)
		}
		if err != nil {
			// It could be found but might not survive: a Put that fails leaves nothing.
			t.space.cancel()
			return errors.Join(err, remove(t.fs, path))
		}
	}
	if t.space.commit(b) {
		t.collectSoon()
	}
	return nil
}

// name renames the temporary file, and says whether it had to make the bucket's folder.
func (t *Tier) name(d *dir, key block.Key, temp, path string) (made bool, err error) {
	err = t.fs.Rename(temp, path)
	if !errors.Is(err, unix.ENOENT) {
		return false, err
	}
	if err := mkdir(t.fs, bucketPath(d.root, key[0])); err != nil {
		return false, err
	}
	return true, t.fs.Rename(temp, path)
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
	if gone(err) {
		return fmt.Errorf("delete block %s: %w: %w", key, errdefs.ErrNotFound, err)
	}
	if !errors.Is(err, errdefs.ErrBusy) {
		t.count.errors.Add(1)
	}
	return fmt.Errorf("delete block %s: %w", key, err)
}

func (t *Tier) delete(ctx context.Context, key block.Key) error {
	if err := t.owners.own(ctx, t.ctx.Done(), key, removing); err != nil {
		return err
	}
	defer t.owners.disown(key)
	// Looked at by the owner: from here on nobody can pin it.
	if pinned, _ := t.owners.look(key); pinned {
		return fmt.Errorf("it is retained: %w", errdefs.ErrBusy)
	}
	d := dirOf(t.dirs, key)
	return writeError(t.unname(d, key, func() error { return t.fs.Remove(blockPath(d.root, key)) }))
}
