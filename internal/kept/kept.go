// Package kept keeps what takes long to make, measured profiles, in a directory: a file each, whole or not there, made by one
// process at a time.
package kept

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
)

// DefaultPatience is that of a Dir.
const DefaultPatience = 30 * time.Second

// lockPoll is how often a lock that another process has is asked for again.
const lockPoll = 20 * time.Millisecond

// Dir is where files are kept. The zero value is kvlane/profiles in the user's cache directory. Safe for concurrent use, by
// several processes too.
type Dir struct {
	Path string
	// Patience bounds how long to wait for another process that makes something; it may be stuck. Zero: DefaultPatience.
	Patience time.Duration
}

func (d Dir) path() (string, error) {
	if d.Path != "" {
		return d.Path, nil
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache directory: %w", err)
	}
	return filepath.Join(base, "kvlane", "profiles"), nil
}

// File returns where what has the name is kept, whether it is there or not.
func (d Dir) File(name string) (string, error) {
	dir, err := d.path()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, name+".json"), nil
}

// Read returns a file's bytes, limit at most. The error wraps ErrNotFound where there is none.
func (d Dir) Read(name string, limit int64) (b []byte, err error) {
	file, err := d.File(name)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a FIFO does not wait
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", errdefs.ErrNotFound, err)
		}
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file: %w", file, errdefs.ErrCorrupt)
	}
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

// Write writes a file, in place of what there was of its name. Readers see the old one or the new one.
func (d Dir) Write(name string, b []byte) error {
	file, err := d.File(name)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() { // writing to a FIFO may wait forever
		return fmt.Errorf("%s is no regular file: %w", file, errdefs.ErrInvalid)
	}
	return Replace(file, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
}

// LoadOrMake returns what load returns, or else what make makes, and whether it was loaded. Things are made by one process of
// this host at a time, whatever their names, since two that measure at once measure one another; who had to wait finds what the
// other has stored. A process that keeps others waiting beyond Patience is ErrBusy.
func LoadOrMake[T any](ctx context.Context, d Dir, load func() (T, error), make func() (T, error)) (v T, loaded bool, err error) {
	if v, err := load(); err == nil {
		return v, true, nil
	}
	err = d.Locked(ctx, func() (err error) {
		// Whoever held the lock may have stored it. Why it cannot be loaded otherwise does not matter: it is made anew.
		if v, err = load(); err == nil {
			loaded = true
			return nil
		}
		v, err = make()
		return err
	})
	return v, loaded, err
}

// Locked calls f while no other process on this host is in Locked with the same directory.
func (d Dir) Locked(ctx context.Context, f func() error) (err error) {
	dir, err := d.path()
	if err != nil {
		return err
	}
	patience := d.Patience
	if patience == 0 {
		patience = DefaultPatience
	}
	waiting, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("it had it for %v: %w", patience, errdefs.ErrBusy))
	defer cancel()
	lock, err := lockFile(waiting, filepath.Join(dir, "calibrate.lock"))
	if err != nil {
		return fmt.Errorf("lock the profiles: %w", err)
	}
	// A child of fork() may have the file open too, so closing it would not end the lock.
	defer func() { err = errors.Join(err, unix.Flock(int(lock.Fd()), unix.LOCK_UN), lock.Close()) }()
	return f()
}

// lockFile opens name, making it if need be, and locks it. flock has no deadline of its own.
func lockFile(ctx context.Context, name string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("flock %s: %w", name, err), f.Close())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("another process holds %s: %w", name, context.Cause(ctx)), f.Close())
		}
	}
}
