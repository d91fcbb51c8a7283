package dirfs

import (
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
)

// LockTable lists the descriptors of files that the process has locked. Each value is a descriptor
// plus one, or zero.
//
// A lock of flock belongs to the open file. A child of fork() shares the open file, so the lock
// would be held as long as the child lives, even after the process has ended. Therefore code that
// runs in such children must close these descriptors. In programs started by Go, exec closes them.
type LockTable [256]atomic.Int32

var locked LockTable

// Locked returns the table of this process. Its address never changes.
func Locked() *LockTable { return &locked }

// add adds a descriptor. It returns false if the table is full; then a child of fork() keeps the
// lock.
func (t *LockTable) add(fd int) bool {
	for i := range t {
		if t[i].CompareAndSwap(0, int32(fd)+1) {
			return true
		}
	}
	return false
}

func (t *LockTable) remove(fd int) {
	for i := range t {
		if t[i].CompareAndSwap(int32(fd)+1, 0) {
			return
		}
	}
}

// CloseInChildren adds the descriptor of a listening socket to the table. Otherwise a child of
// fork() would keep its address in use. The caller must call remove before it closes the
// descriptor.
func CloseInChildren(fd int) (remove func()) {
	locked.add(fd)
	return func() { locked.remove(fd) }
}

// Lock implements dirfs.File.
func (f *osFile) Lock() error {
	if !f.locked { // before locking, so that a child finds it in the table
		f.locked = locked.add(f.fd)
	}
	_, err := retry(func() (int, error) { return 0, unix.Flock(f.fd, unix.LOCK_EX|unix.LOCK_NB) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("%w: %w", errdefs.ErrBusy, f.error("flock", err))
	}
	return f.error("flock", err)
}

// Close implements dirfs.File. It releases the lock even if a child of fork() has the file open.
func (f *osFile) Close() error {
	var err error
	if f.locked {
		_, err = retry(func() (int, error) { return 0, unix.Flock(f.fd, unix.LOCK_UN) })
		locked.remove(f.fd)
	}
	return errors.Join(f.error("unlock", err), f.error("close", unix.Close(f.fd)))
}
