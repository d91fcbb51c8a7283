package blockhost

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
)

// lockName is the file that a process locks in the root. It is no name of a tenant.
const lockName = ".blockd.lock"

// Recognises reports whether a block server has locked the directory root, now or before.
func Recognises(root string) bool {
	_, err := os.Lstat(filepath.Join(root, lockName))
	return err == nil
}

// LockRoot makes the directory root and locks it for this process until unlock is called. holder
// describes the process for the error of another one. LockRoot does not wait: it returns ErrBusy,
// with the holder, if another process has the lock.
func LockRoot(root, holder string) (unlock func() error, err error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of blocks: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(root, lockName), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the directory of blocks: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		by, _ := io.ReadAll(io.LimitReader(f, 256)) // the message is only less exact without it
		return nil, errors.Join(fmt.Errorf("directory %s is in use by another block server (%s): stop it, or use another directory: %w",
			root, strings.TrimSpace(string(by)), errdefs.ErrBusy), f.Close())
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt([]byte(holder+"\n"), 0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock directory %s: %w", root, err), f.Close())
	}
	return f.Close, nil
}
