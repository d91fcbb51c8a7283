package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
)

const (
	// lockTimeout is the maximum wait for another process that creates a socket in the same
	// directory.
	lockTimeout = 5 * time.Second
	// lockPoll is the interval between attempts to lock the directory.
	lockPoll = 5 * time.Millisecond
)

// socketListener listens on a Unix socket. Close removes the socket's file only if no other process
// has replaced it.
type socketListener struct {
	net.Listener
	path  string
	bound fs.FileInfo
}

// listenUnix listens on a socket with mode 0600 at path. It replaces a socket without a listener.
// It locks the directory, so that only one of several processes gets the address; the others get
// EADDRINUSE.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	unlock, err := lockDir(ctx, filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	// The socket's file gets the mode that the descriptor has at bind time.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }), err)
	}}
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	bound, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	return &socketListener{Listener: notInChildren(l), path: path, bound: bound}, nil
}

// Close removes the file before it closes the listener. Until then, no other file can have the same
// inode number.
func (l *socketListener) Close() error {
	now, err := os.Lstat(l.path)
	if err == nil && os.SameFile(now, l.bound) {
		err = os.Remove(l.path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, l.Listener.Close())
}

// lockDir locks a directory. It waits at most lockTimeout.
func lockDir(ctx context.Context, dir string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_RDONLY, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	unlock = func() { // unlock explicitly, because a forked child may have the descriptor too
		_ = unix.Flock(fd, unix.LOCK_UN)
		_ = unix.Close(fd)
	}
	for {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return unlock, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			unlock()
			return nil, &fs.PathError{Op: "lock", Path: dir, Err: err}
		}
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
			unlock()
			return nil, fmt.Errorf("lock %s, which another process has locked: %w: %w", dir, errdefs.ErrBusy, context.Cause(ctx))
		}
	}
}

// removeStale removes the socket file of a server that has ended without removing it. It does not
// remove other files. The caller has locked the directory.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("the file is not a socket: %w", errdefs.ErrExists)
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err == nil {
		return errors.Join(unix.EADDRINUSE, c.Close())
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
