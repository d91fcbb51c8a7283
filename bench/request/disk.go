package request

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

const (
	dropWorkers = 16
	// sampled is the inverse of the fraction of files that are checked for pages in memory.
	sampled = 16
	// Pages that a CPU has recently used stay in memory for a while, so dropping is retried with
	// pauses.
	dropTries = 50
	dropPause = 10 * time.Millisecond
)

// dropFiles drops the files of blocks in the directory of a file tier or a log from the page cache.
// If ask is true, it checks some of the files, which may read them again. The error wraps
// ErrNotSupported if the file system keeps the pages in memory.
func dropFiles(dir string, keys []block.Key, ask bool) error {
	names, err := filepath.Glob(filepath.Join(dir, "seg-*"))
	if err != nil {
		return err
	}
	if len(names) == 0 {
		for _, k := range keys {
			names = append(names, blockFile(dir, k))
		}
	}
	var g errgroup.Group
	g.SetLimit(dropWorkers)
	for i, name := range names {
		g.Go(func() error { return dropFile(dir, name, ask && i%sampled == 0) })
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("drop blocks from the page cache: %w", err)
	}
	return nil
}

// blockFile returns the name of a block's file in the directory of a file tier.
func blockFile(dir string, key block.Key) string {
	name := key.String()
	return filepath.Join(dir, name[:2], name)
}

func dropFile(dir, name string, ask bool) (err error) {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	// Only clean pages can be dropped.
	if err := f.Sync(); err != nil {
		return err
	}
	fd := int(f.Fd())
	for range dropTries {
		if err := unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED); err != nil {
			return fmt.Errorf("posix_fadvise: %w: %w", errdefs.ErrNotSupported, err)
		}
		if !ask {
			return nil
		}
		var b [1]byte
		if _, err = unix.Preadv2(fd, [][]byte{b[:]}, 0, unix.RWF_NOWAIT); err != nil {
			break
		}
		time.Sleep(dropPause)
	}
	switch {
	case errors.Is(err, unix.EAGAIN):
		return nil
	case err == nil:
		return fmt.Errorf("the file system of %s does not drop files from memory: choose a directory on a disk: %w", dir, errdefs.ErrNotSupported)
	}
	return fmt.Errorf("whether the file system of %s has dropped a file cannot be found out: %w: %w", dir, errdefs.ErrNotSupported, err)
}
