package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

// Inspection is what a directory holds.
type Inspection struct {
	Marker      Marker
	Blocks      int64
	Bytes       int64 // of the blocks' files, if each has the length that the layout says
	Temporary   int   // files being written, or left by processes that died
	Quarantined int
}

// Inspect says what the directory holds, by name alone: Verify looks at the bytes. Like the other functions on a
// directory it needs no Tier and may be called while others use the directory. Errors: ErrNotFound where it is no
// directory of blocks, ErrCorrupt or ErrMismatch where its marker cannot be read.
func Inspect(ctx context.Context, dir string) (Inspection, error) { return inspect(ctx, OS(), dir) }

func inspect(ctx context.Context, fsys FS, dir string) (Inspection, error) {
	root, m, err := openExisting(fsys, dir)
	if err != nil {
		return Inspection{}, fmt.Errorf("inspect %w", err)
	}
	in := Inspection{Marker: m}
	for b := range buckets {
		if ctx.Err() != nil {
			return in, fmt.Errorf("inspect directory %s: %w", root, context.Cause(ctx))
		}
		keys, _, err := listBucket(fsys, root, byte(b))
		if err != nil {
			return in, fmt.Errorf("inspect directory %s: %w", root, err)
		}
		in.Blocks += int64(len(keys))
	}
	in.Bytes = in.Blocks * m.Layout.ImageBytes()
	sessions, err := names(fsys, root+"/"+tmpName)
	for _, s := range sessions {
		files, ferr := names(fsys, root+"/"+tmpName+"/"+s)
		err = errors.Join(err, ferr)
		for _, f := range files {
			if f != sessionLock {
				in.Temporary++
			}
		}
	}
	bad, berr := names(fsys, root+"/"+quarantine)
	in.Quarantined = len(bad)
	if err := errors.Join(err, berr); err != nil {
		return in, fmt.Errorf("inspect directory %s: %w", root, err)
	}
	return in, nil
}

// Entry is a block in a directory.
type Entry struct {
	Key      block.Key
	Bytes    int64     // of its file
	Modified time.Time // when it was written, or its hotness was last renewed
	Shards   int       // as the directory's layout says
}

// List calls yield for every block of the directory, in the order of their keys, until it returns an error, which List
// returns as it is. Blocks that come or go meanwhile may be listed or not.
func List(ctx context.Context, dir string, yield func(Entry) error) error {
	return list(ctx, OS(), dir, yield)
}

func list(ctx context.Context, fsys FS, dir string, yield func(Entry) error) error {
	root, m, err := openExisting(fsys, dir)
	if err != nil {
		return fmt.Errorf("list %w", err)
	}
	for b := range buckets {
		keys, _, err := listBucket(fsys, root, byte(b))
		if err != nil {
			return fmt.Errorf("list directory %s: %w", root, err)
		}
		for _, key := range keys {
			if ctx.Err() != nil {
				return fmt.Errorf("list directory %s: %w", root, context.Cause(ctx))
			}
			info, err := fsys.Stat(blockPath(root, key))
			if gone(err) {
				continue
			}
			if err != nil {
				return fmt.Errorf("list directory %s: %w", root, err)
			}
			if err := yield(Entry{Key: key, Bytes: info.Bytes, Modified: info.Modified, Shards: m.Layout.Shards()}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Collected says what GC did.
type Collected struct {
	Before, After int64 // bytes of blocks
	Removed       int64 // blocks
	Swept         int   // temporary files of processes that have died
}

// GC removes what dead processes left in the directory and then its coldest blocks, until at most targetBytes are left.
// Other processes may use the directory meanwhile: what they are reading they read to its end, and a block that they
// meant to read next is a miss for them, even if they retained it.
func GC(ctx context.Context, dir string, targetBytes int64) (Collected, error) {
	return gc(ctx, OS(), dir, targetBytes)
}

func gc(ctx context.Context, fsys FS, dir string, targetBytes int64) (c Collected, err error) {
	if targetBytes < 0 {
		return c, fmt.Errorf("collect directory %s down to %d bytes: %w", dir, targetBytes, errdefs.ErrInvalid)
	}
	in, err := inspect(ctx, fsys, dir)
	if err != nil {
		return c, err
	}
	root, image := filepath.Clean(dir), in.Marker.Layout.ImageBytes()
	c.Before, c.After = in.Bytes, in.Bytes
	fail := func(err error) (Collected, error) {
		return c, fmt.Errorf("collect directory %s: %w", root, writeError(err))
	}
	err = withLock(fsys, root, func() (err error) {
		c.Swept, err = sweep(fsys, root)
		return err
	})
	if err != nil {
		return fail(err)
	}
	need := in.Blocks - targetBytes/image
	if need <= 0 {
		return c, nil
	}
	cold, err := coldest(ctx, fsys, []string{root}, need, func(block.Key) bool { return true })
	if err != nil {
		return fail(err)
	}
	for _, k := range cold {
		if ctx.Err() != nil {
			return fail(context.Cause(ctx))
		}
		path := blockPath(root, k.key)
		// What another process has used since it was found cold stays.
		info, err := fsys.Stat(path)
		if err == nil && !info.Modified.Equal(k.modified) {
			continue
		}
		if err == nil {
			err = fsys.Remove(path)
		}
		if err != nil && !gone(err) {
			return fail(err)
		}
		c.Removed++
		c.After -= image
	}
	return c, nil
}

// openExisting reads the marker of a directory of blocks. Its error begins with "directory".
func openExisting(fsys FS, dir string) (root string, m Marker, err error) {
	if strings.TrimSpace(dir) == "" {
		return "", Marker{}, fmt.Errorf("directory: no name is given: %w", errdefs.ErrInvalid)
	}
	root = filepath.Clean(dir)
	m, err = readMarker(fsys, root)
	if gone(err) {
		err = fmt.Errorf("it is no directory of blocks: %w: %w", errdefs.ErrNotFound, err)
	}
	if err != nil {
		return root, Marker{}, fmt.Errorf("directory %s: %w", root, err)
	}
	return root, m, nil
}

// withLock runs f while no process opens or sweeps the directory.
func withLock(fsys FS, root string, f func() error) (err error) {
	lock, err := fsys.Open(root+"/"+lockName, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := lock.Lock(true); err != nil {
		return fmt.Errorf("lock it against other processes that open it: %w", err)
	}
	return f()
}

// names lists a folder that need not be there.
func names(fsys FS, path string) ([]string, error) {
	n, err := fsys.ReadDir(path)
	if gone(err) {
		return nil, nil
	}
	return n, err
}
