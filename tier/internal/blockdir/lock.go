package blockdir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jonboulle/clockwork"
	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
)

// The interval between attempts to lock a directory doubles from lockPauseLeast to lockPauseMost.
const (
	lockPauseLeast = time.Millisecond
	lockPauseMost  = 50 * time.Millisecond
)

// WithLock calls f while it holds the lock of a directory. No other process can open or clean the
// directory meanwhile. WithLock waits for the lock until ctx ends.
func WithLock(ctx context.Context, clock clockwork.Clock, d dirfs.Dir, f func() error) error {
	for pause := lockPauseLeast; ; pause = min(2*pause, lockPauseMost) {
		locked, err := TryLock(d, f)
		if locked || err != nil {
			return err
		}
		select {
		case <-clock.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("another process is opening it and holds %s: %w: %w", LockName, errdefs.ErrBusy, context.Cause(ctx))
		}
	}
}

// TryLock implements WithLock without waiting. locked reports whether f was called. The error is
// that of f, or the cause if locking fails. It is nil if another process holds the lock.
func TryLock(d dirfs.Dir, f func() error) (locked bool, err error) {
	lock, err := openLockFile(d)
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) {
		if lock, err = d.Open(LockName, os.O_RDONLY); Gone(err) {
			return true, f() // no other process can open the directory
		}
	}
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	err = lock.Lock()
	if err == nil {
		err = stillNamed(d, lock)
	}
	switch {
	case errors.Is(err, errdefs.ErrBusy):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("lock it against other processes: %w", err)
	}
	return true, f()
}

// stillNamed returns ErrBusy if a locked file no longer has the lock's name: the previous holder
// has removed the directory, and another process may have created and locked a new one.
func stillNamed(d dirfs.Dir, lock dirfs.File) error {
	mine, err := lock.Stat()
	if err != nil {
		return err
	}
	named, err := d.Stat(LockName)
	if err == nil && named.Inode == mine.Inode || err != nil && !Gone(err) {
		return err
	}
	return errdefs.ErrBusy
}

// OpenLock opens a file to be locked. On a read-only mount it opens the file for reading.
func OpenLock(d dirfs.Dir, name string) (dirfs.File, error) {
	f, err := d.Open(name, os.O_RDWR)
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) {
		return d.Open(name, os.O_RDONLY)
	}
	return f, err
}

// LockDir locks a directory for one process until the returned file is closed. It returns ErrBusy
// if another process, or another tier of this process, holds the lock.
func LockDir(d dirfs.Dir) (dirfs.File, error) {
	f, err := openLockFile(d)
	if err != nil {
		return nil, err
	}
	if err := f.Lock(); err != nil {
		if errors.Is(err, errdefs.ErrBusy) {
			err = fmt.Errorf("%s has it open, or another tier of this process: only one may: %w", Holder(d, LockName), err)
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
