package plan

import (
	"context"
	"encoding/json"
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

// DefaultPatience is that of a Cache.
const DefaultPatience = 30 * time.Second

// lockPoll is how often a lock that another process has is asked for again.
const lockPoll = 20 * time.Millisecond

// Cache keeps profiles in a directory, one file a key. The zero value keeps them in the user's cache directory, under
// kvlane/profiles. Safe for concurrent use, by several processes too.
type Cache struct {
	Dir string
	// Patience bounds how long to wait for another process that measures; it may be stuck. Zero: DefaultPatience.
	Patience time.Duration
}

func (c Cache) dir() (string, error) {
	if c.Dir != "" {
		return c.Dir, nil
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache directory: %w", err)
	}
	return filepath.Join(base, "kvlane", "profiles"), nil
}

// File returns where the profile of k is kept, whether it is there or not.
func (c Cache) File(k Key) (string, error) {
	dir, err := c.dir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, k.hash()+".json"), nil
}

// Load returns the profile of k. The error wraps ErrNotFound where there is none, ErrCorrupt where the file is damaged
// and ErrMismatch where it is of another key or version.
func (c Cache) Load(k Key) (_ Profile, err error) {
	name, err := c.File(k)
	if err != nil {
		return Profile{}, err
	}
	f, err := os.Open(name)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", errdefs.ErrNotFound, err)
		}
		return Profile{}, fmt.Errorf("load profile: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b, err := io.ReadAll(io.LimitReader(f, maxEncoded+1))
	if err != nil {
		return Profile{}, fmt.Errorf("load profile %s: %w", name, err)
	}
	p, err := Decode(b)
	if err != nil {
		return Profile{}, fmt.Errorf("load profile %s: %w", name, err)
	}
	if p.Key != k {
		return Profile{}, fmt.Errorf("load profile %s: it is of %s: %w", name, p.Key, errdefs.ErrMismatch)
	}
	return p, nil
}

// Store writes p, in place of what there was of its key. Readers see the old file or the new one.
func (c Cache) Store(p Profile) (err error) {
	b, err := json.MarshalIndent(p, "", " ")
	if err != nil {
		return fmt.Errorf("store profile: %w", err)
	}
	name, err := c.File(p.Key)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("store profile %s: %w", name, err)
		}
	}()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// LoadOrMake returns the profile of k, and whether it was loaded. Where it cannot be loaded, make makes it: in one process
// of this host at a time, whatever the key, since two that measure at once measure one another; who had to wait finds
// what the other has stored. A file that is damaged or of another version is replaced. What make returns is stored if
// store agrees. A process that keeps others waiting beyond Patience is ErrBusy.
func (c Cache) LoadOrMake(ctx context.Context, k Key, make func(context.Context) (p Profile, store bool, err error)) (p Profile, loaded bool, err error) {
	if p, err := c.Load(k); err == nil {
		return p, true, nil
	}
	return c.locked(ctx, func() (Profile, bool, error) {
		// Whoever held the lock may have stored it. Why it cannot be loaded otherwise does not matter: it is made anew.
		if p, err := c.Load(k); err == nil {
			return p, true, nil
		}
		p, err := c.make(ctx, make)
		return p, false, err
	})
}

// Make makes and stores a profile as LoadOrMake does, whether there is one or not.
func (c Cache) Make(ctx context.Context, make func(context.Context) (p Profile, store bool, err error)) (Profile, error) {
	p, _, err := c.locked(ctx, func() (Profile, bool, error) {
		p, err := c.make(ctx, make)
		return p, false, err
	})
	return p, err
}

func (c Cache) make(ctx context.Context, make func(context.Context) (Profile, bool, error)) (Profile, error) {
	p, store, err := make(ctx)
	if err != nil || !store {
		return p, err
	}
	return p, c.Store(p)
}

// locked calls f while no other process on this host is in locked with the same directory.
func (c Cache) locked(ctx context.Context, f func() (Profile, bool, error)) (p Profile, loaded bool, err error) {
	dir, err := c.dir()
	if err != nil {
		return Profile{}, false, err
	}
	patience := c.Patience
	if patience == 0 {
		patience = DefaultPatience
	}
	waiting, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("it had it for %v: %w", patience, errdefs.ErrBusy))
	defer cancel()
	lock, err := lockFile(waiting, filepath.Join(dir, "calibrate.lock"))
	if err != nil {
		return Profile{}, false, fmt.Errorf("lock the profiles: %w", err)
	}
	// Closing the file gives up the lock.
	defer func() { err = errors.Join(err, lock.Close()) }()
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
