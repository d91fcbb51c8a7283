package file

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// Folders returns the directories of blocks at a path: the path itself if it has a marker,
// otherwise the folders directly below it that have a marker or have lost it. If there are none it
// returns the path. It ignores links.
func Folders(path string) (_ []string, err error) {
	d, err := dirfs.OS().OpenDir(path)
	if err != nil {
		return []string{path}, nil //nolint:nilerr // opening the path returns the error
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if _, err := d.Stat(blockdir.MarkerName); err == nil {
		return []string{path}, nil
	}
	names, err := d.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("find folders of blocks in %s: %w", path, err)
	}
	var found []string
	for _, n := range names {
		_, marker := d.Stat(n + "/" + blockdir.MarkerName)
		_, lock := d.Stat(n + "/" + blockdir.LockName)
		if info, err := d.Stat(n); err == nil && info.Type.IsDir() && (marker == nil || lock == nil) {
			found = append(found, filepath.Join(path, n))
		}
	}
	if len(found) == 0 {
		found = []string{path}
	}
	return found, nil
}

// LastUse returns the time of the last use of a directory of blocks, from its usage record or,
// without one, the time at which it was made: collections change it too. open is set if a process
// of this host has the directory open for writing or is opening it.
func LastUse(path string) (used time.Time, open bool, err error) {
	d, err := openExisting(dirfs.OS(), path)
	if err != nil {
		return used, false, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if r, rerr := blockdir.ReadRecord(d); rerr == nil {
		used = r.Used
	} else if info, serr := d.Stat(blockdir.MarkerName); serr == nil {
		used = info.Modified
	}
	locked, err := blockdir.TryLock(d, func() (err error) {
		open, err = anySession(d)
		return err
	})
	return used, open || !locked, err
}
