package file

import (
	"errors"
	"fmt"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// toQuarantine moves the file bad from the block's name to quarantine, under the name to. If
// another process has replaced the file meanwhile, toQuarantine moves that file back and returns an
// error that satisfies blockdir.Gone.
func toQuarantine(d dirfs.Dir, now time.Time, key block.Key, bad dirfs.Info) (to string, err error) {
	return quarantineFrom(d, blockName(key), now, key, bad)
}

func quarantineFrom(d dirfs.Dir, name string, now time.Time, key block.Key, bad dirfs.Info) (to string, err error) {
	to = blockdir.Quarantine + "/" + blockdir.QuarantineName(now, key)
	err = d.Rename(name, to, false)
	if errors.Is(err, unix.ENOENT) {
		if err = blockdir.Mkdir(d, blockdir.Quarantine); err == nil {
			err = d.Rename(name, to, false)
		}
	}
	if err != nil {
		return "", err
	}
	moved, err := d.Stat(to)
	if err != nil || moved.Inode == bad.Inode {
		return to, nil
	}
	if err := d.Rename(to, name, false); err != nil {
		return to, nil // another file has the name by now, so the moved one was replaced anyway
	}
	// The file may have been durable under this name.
	if _, err := blockdir.SyncFolder(d, path.Dir(name)); err != nil {
		return "", err
	}
	return "", fmt.Errorf("%s is another file by now: %w", name, unix.ESTALE)
}
