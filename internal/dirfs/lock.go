package dirfs

import (
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
)

// LockTable has the descriptors of the locks that the process holds. Each value is a descriptor
// plus one, or zero.
//
// A lock of flock belongs to the open file. A child of fork() shares that file, so the lock would
// outlive the process as long as the child lives. Code that runs in such children must close these
// descriptors there. For programs that Go starts, exec closes them.
type LockTable [256]atomic.Int32

var locked LockTable

// Locked returns the process's table. It is never freed, and its address does not change.
func Locked() *LockTable { return &locked }

// add adds a descriptor. It returns false if the table is full: a child then keeps this lock.
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

// CloseInChildren adds the descriptor of a listening socket to the process's table, as a child of
// fork() would keep its address taken. The caller calls remove before it closes the descriptor.
func CloseInChildren(fd int) (remove func()) {
	locked.add(fd)
	return func() { locked.remove(fd) }
}

// Lock implements dirfs.File.
func (f *osFile) Lock() error {
	if !f.locked { // before the lock is taken, so that each child finds it in the table
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
