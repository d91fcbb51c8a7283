package file

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
)

// toQuarantine moves the file bad from the block's name to quarantine. What another process has put in its place meanwhile it
// gives back; the error is then gone().
func toQuarantine(d dirfs.Dir, now time.Time, key block.Key, bad dirfs.Info) error {
	return quarantineFrom(d, blockName(key), now, key, bad)
}

func quarantineFrom(d dirfs.Dir, name string, now time.Time, key block.Key, bad dirfs.Info) error {
	// Names begin with the time, in digits of constant number, so that the oldest comes first.
	to := fmt.Sprintf("%s/%016x-%s", quarantine, uint64(now.UnixNano()), key)
	err := d.Rename(name, to, false)
	if errors.Is(err, unix.ENOENT) {
		if err = mkdir(d, quarantine); err == nil {
			err = d.Rename(name, to, false)
		}
	}
	if err != nil {
		return err
	}
	moved, err := d.Stat(to)
	if err != nil || moved.Inode == bad.Inode {
		return nil
	}
	if err := d.Rename(to, name, false); err != nil {
		return nil // a third is there; what was moved had its successor
	}
	// Under this name it may have been durable, and is to be again.
	if _, err := syncFolder(d, path.Dir(name)); err != nil {
		return err
	}
	return fmt.Errorf("%s is another file by now: %w", name, unix.ESTALE)
}

// trimQuarantine removes the oldest files until most are left. What it cannot remove, and what is not kvlane's, it leaves.
func trimQuarantine(d dirfs.Dir, most int) error {
	all, err := names(d, quarantine)
	if err != nil {
		return err
	}
	var ours []string
	for _, n := range all {
		if quarantineName(n) {
			ours = append(ours, n)
		}
	}
	var errs []error
	for _, n := range ours[:max(0, len(ours)-most)] {
		if err := remove(d, quarantine+"/"+n); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// quarantineName says whether a name is one that toQuarantine gives.
func quarantineName(n string) bool {
	const digits = 16
	if len(n) < digits+1 || n[digits] != '-' {
		return false
	}
	_, err := strconv.ParseUint(n[:digits], 16, 64)
	if err != nil {
		return false
	}
	_, err = block.ParseKey(n[digits+1:])
	return err == nil
}
