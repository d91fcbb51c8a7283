package share

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
)

const (
	network = "unixpacket" // SOCK_SEQPACKET
	suffix  = ".sock"
	// lockPoll is the interval between attempts to lock a directory.
	lockPoll = 5 * time.Millisecond
)

// runtimeDir is the environment variable that names the user's runtime directory.
const runtimeDir = "XDG_RUNTIME_DIR"

// DefaultDir returns the default directory for the sockets of this user.
func DefaultDir() string {
	if dir := os.Getenv(runtimeDir); filepath.IsAbs(dir) {
		return filepath.Join(dir, "kvlane")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("kvlane-%d", os.Geteuid()))
}

// listen creates a socket with mode 0600 in dir. If dir does not exist, it is created with mode
// 0700. listen removes sockets in dir that have no listener. It returns ErrExists if another
// process listens on the name, and ErrInvalid if other users have access to the directory.
func listen(ctx context.Context, dir, name string) (*net.UnixListener, error) {
	path := filepath.Join(dir, name)
	if !filepath.IsAbs(path) || len(path) > maxSocketPath || filepath.Base(name) != name {
		return nil, fmt.Errorf("%q is not an absolute path of at most %d bytes: %w", path, maxSocketPath, errdefs.ErrInvalid)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make directory of sockets: %w", err)
	}
	unlock, err := lockDir(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := sweep(dir); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("another process listens on %s: %w", path, errdefs.ErrExists)
	case err != nil:
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// lockDir checks that only this user has access to dir, and locks it. The lock is needed while a
// socket is created: without a listener, the socket looks like that of a dead server.
func lockDir(ctx context.Context, dir string) (unlock func(), err error) {
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("open directory of sockets %s: %w", dir, err)
	}
	unlock = func() { // unlock explicitly, because a forked child may have the descriptor too
		_ = unix.Flock(fd, unix.LOCK_UN)
		_ = unix.Close(fd)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unlock()
		return nil, fmt.Errorf("stat directory of sockets %s: %w", dir, err)
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		unlock()
		return nil, fmt.Errorf("directory of sockets %s has mode %#o and belongs to user %d: must belong to this user only: %w", dir, st.Mode&0o777, st.Uid, errdefs.ErrInvalid)
	}
	for {
		switch err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			return unlock, nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			unlock()
			return nil, fmt.Errorf("lock directory of sockets %s: %w", dir, err)
		}
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
			unlock()
			return nil, fmt.Errorf("lock directory of sockets %s: %w", dir, context.Cause(ctx))
		}
	}
}

// sweep removes the sockets of dead servers. The caller has locked dir.
func sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list directory of sockets: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if e.Type()&fs.ModeSocket == 0 || !strings.HasSuffix(e.Name(), suffix) {
			continue
		}
		c, err := net.DialUnix(network, nil, &net.UnixAddr{Name: path, Net: network})
		if err == nil {
			_ = c.Close()
		} else if errors.Is(err, unix.ECONNREFUSED) {
			err = os.Remove(path)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove a dead exporter's socket: %w", err)
			}
		}
	}
	return nil
}

// readPacket reads a packet with read. If read returns io.EOF or ECONNRESET, it calls read up to
// twice more, because the last packet may still be readable: Linux reports a reset before unread
// packets, and a non-blocking read can miss a packet that arrives together with the end of the
// connection.
func readPacket(read func() (int, error)) (n int, err error) {
	n, err = read()
	for i := 0; i < 2 && (errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET)); i++ {
		n, err = read()
	}
	return n, err
}

// credentials returns the credentials that the peer process of c had when it connected or listened.
func credentials(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, failed); err != nil {
		return nil, fmt.Errorf("read the credentials of the other end: %w", err)
	}
	return cred, nil
}

// users returns the allowed user IDs, by default the user of this process.
func users(allow []int) []int {
	if allow == nil {
		return []int{os.Geteuid()}
	}
	return allow
}
