// Package kept stores measured profiles as files in a directory. A file is always complete. Only
// one process at a time measures a profile.
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

// DefaultPatience is the default value of Dir.Patience.
const DefaultPatience = 30 * time.Second

// lockPoll is the interval between attempts to take a lock.
const lockPoll = 20 * time.Millisecond

// Dir is a directory of profiles. The zero value is kvlane/profiles in the user's cache directory.
// It is safe for concurrent use by goroutines and processes.
type Dir struct {
	Path string
	// Patience is the maximum time to wait for another process that is measuring. Zero:
	// DefaultPatience.
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

// File returns the path of the file with a name. The file need not exist.
func (d Dir) File(name string) (string, error) {
	dir, err := d.path()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, name+".json"), nil
}

// Read returns the contents of a file, at most limit bytes. It returns ErrNotFound if the file does
// not exist.
func (d Dir) Read(name string, limit int64) (b []byte, err error) {
	file, err := d.File(name)
	if err != nil {
		return nil, err
	}
	// does not block if the file is a FIFO
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", errdefs.ErrNotFound, err)
		}
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file: %w", file, errdefs.ErrCorrupt)
	}
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

// Write creates or replaces a file atomically.
func (d Dir) Write(name string, b []byte) error {
	file, err := d.File(name)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	// Writing to a FIFO could block forever.
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file: %w", file, errdefs.ErrInvalid)
	}
	return Replace(file, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
}

// LoadOrMake returns the result of load, or if that fails, of make. loaded reports whether it was
// load. Only one process of this host calls make at a time, for any file, because concurrent
// measurements would disturb each other. While it waits for another process, the file may have been
// created, so it calls load again. It returns ErrBusy if the wait exceeds Patience.
func LoadOrMake[T any](ctx context.Context, d Dir, load func() (T, error), make func() (T, error)) (v T, loaded bool, err error) {
	if v, err := load(); err == nil {
		return v, true, nil
	}
	err = d.Locked(ctx, func() (err error) {
		// Another process may have stored the file before it released the lock. Any error of load
		// means that the file must be made.
		if v, err = load(); err == nil {
			loaded = true
			return nil
		}
		v, err = make()
		return err
	})
	return v, loaded, err
}

// Locked calls f while no other process on this host is in Locked for the same directory.
func (d Dir) Locked(ctx context.Context, f func() error) (err error) {
	dir, err := d.path()
	if err != nil {
		return err
	}
	patience := d.Patience
	if patience == 0 {
		patience = DefaultPatience
	}
	waiting, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("still locked after %v: %w", patience, errdefs.ErrBusy))
	defer cancel()
	lock, err := lockFile(waiting, filepath.Join(dir, "calibrate.lock"))
	if err != nil {
		return fmt.Errorf("lock the profiles: %w", err)
	}
	// Unlock explicitly: a child of fork() may also have the file open, and then closing it would
	// not release the lock.
	defer func() { err = errors.Join(err, unix.Flock(int(lock.Fd()), unix.LOCK_UN), lock.Close()) }()
	return f()
}

// lockFile opens or creates the file and locks it. It polls because flock has no timeout.
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
