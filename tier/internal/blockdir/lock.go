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

// lockPauseLeast and lockPauseMost bound the pauses between tries for a directory's lock.
const (
	lockPauseLeast = time.Millisecond
	lockPauseMost  = 50 * time.Millisecond
)

// WithLock runs f while no process opens or sweeps the directory. It waits for others until ctx ends.
func WithLock(ctx context.Context, clock clockwork.Clock, d dirfs.Dir, f func() error) (err error) {
	lock, err := d.Open(LockName, os.O_RDWR|os.O_CREATE)
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) {
		if lock, err = d.Open(LockName, os.O_RDONLY); Gone(err) {
			return f() // nobody can open it who would have to be kept out
		}
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	for pause := lockPauseLeast; ; pause = min(2*pause, lockPauseMost) {
		err := lock.Lock()
		if err == nil {
			return f()
		}
		if !errors.Is(err, errdefs.ErrBusy) {
			return fmt.Errorf("lock it against other processes that open it: %w", err)
		}
		select {
		case <-clock.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("another process opens it and holds %s: %w: %w", LockName, err, context.Cause(ctx))
		}
	}
}

// OpenLock opens a file to lock it, which on a read-only mount can be done for reading only.
func OpenLock(d dirfs.Dir, name string) (dirfs.File, error) {
	f, err := d.Open(name, os.O_RDWR)
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) {
		return d.Open(name, os.O_RDONLY)
	}
	return f, err
}

// Own locks a directory that one process has at a time, until the file is closed. ErrBusy where another has it.
func Own(d dirfs.Dir) (dirfs.File, error) {
	f, err := d.Open(LockName, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	if err := f.Lock(); err != nil {
		if errors.Is(err, errdefs.ErrBusy) {
			err = fmt.Errorf("another process has it open, or another tier of this one, and it belongs to one at a time: %w", err)
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
