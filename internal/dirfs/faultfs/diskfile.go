package faultfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
)

// diskFile is an open file of a Process.
type diskFile struct {
	process *Process
	inode   *inode
	path    string
	flag    int
}

func (f *diskFile) do(op string, run func() error) error {
	return f.process.do(op, f.path, func() error {
		if !f.process.open[f] {
			return unix.EBADF
		}
		return run()
	})
}

// release does the parts of closing that also happen when the process dies. The caller holds the
// disk's lock.
func (f *diskFile) release() {
	if f.inode.locker == f {
		f.inode.locker = nil
	}
	f.inode.opens--
	f.process.disk.dropUnused(f.inode)
}

func (f *diskFile) ReadAt(b []byte, off int64) (n int, err error) {
	err = f.do("read", func() error {
		switch {
		case f.inode.isDir():
			return unix.EISDIR
		case f.flag&unix.O_ACCMODE == os.O_WRONLY:
			return unix.EBADF
		case off < 0:
			return unix.EINVAL
		case off < int64(len(f.inode.data)):
			n = copy(b, f.inode.data[off:])
		}
		return nil
	})
	if err == nil && n < len(b) {
		err = io.EOF
	}
	return n, err
}

func (f *diskFile) WriteAt(b []byte, off int64) (n int, err error) {
	err = f.do("write", func() error {
		switch {
		case f.flag&unix.O_ACCMODE == os.O_RDONLY:
			return unix.EBADF
		case off < 0:
			return unix.EINVAL
		case len(b) == 0:
			return nil
		}
		disk, size := f.process.disk, int64(len(f.inode.data))
		// A write beyond the limit is truncated, as on a full device.
		end := size + disk.available(max(0, off+int64(len(b))-size))
		fits := min(end-off, int64(len(b)))
		if fits > 0 {
			n = int(fits)
			disk.change(f.inode, write{off, slices.Clone(b[:n]), max(size, off+fits)})
		}
		if n < len(b) {
			return unix.ENOSPC
		}
		return nil
	})
	return n, err
}

func (f *diskFile) Stat() (i dirfs.Info, err error) {
	err = f.do("fstat", func() error {
		i = f.inode.info()
		return nil
	})
	return i, err
}

func (f *diskFile) Sync() error {
	return f.do("fdatasync", func() error {
		f.inode.sync()
		return nil
	})
}

func (f *diskFile) Lock() error {
	err := f.do("flock", func() error {
		if f.inode.locker != nil && f.inode.locker != f {
			return unix.EWOULDBLOCK
		}
		f.inode.locker = f
		return nil
	})
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("%w: %w", errdefs.ErrBusy, err)
	}
	return err
}

// Close does nothing for a dead process, because its files are already closed.
func (f *diskFile) Close() error { return f.process.close(f, f.path) }
