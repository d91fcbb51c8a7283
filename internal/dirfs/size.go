package dirfs

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
)

// Sizer is implemented by files that support preallocation and truncation, such as those of OS.
type Sizer interface {
	// Allocate sets the length of the file and allocates disk space. New bytes are zero. It returns
	// ErrNotSupported if the file system does not support it.
	Allocate(bytes int64) error
	// Truncate reduces the length of the file to bytes.
	Truncate(bytes int64) error
	// PunchHole frees the disk space of n bytes at off. They read as zeros afterwards, and the file
	// keeps its length. It returns ErrNotSupported if the file system does not support it.
	PunchHole(off, n int64) error
}

// Gatherer is implemented by files that can write several buffers in one call, such as those of OS.
type Gatherer interface {
	WriteAllAt(parts [][]byte, off int64) (int, error)
}

// WritebackStarter is implemented by files that can start writing before Sync is called, such as
// those of OS.
type WritebackStarter interface {
	// StartWriteback starts to write n modified bytes at off to the disk. It may wait for space in
	// the disk's queue. The bytes are durable only after Sync, which also returns write errors.
	StartWriteback(off, n int64) error
}

// DataFinder is implemented by files that can find their holes, such as those of OS.
type DataFinder interface {
	// NextData returns the first offset at or after off that may have data. It returns io.EOF if
	// only a hole follows.
	NextData(off int64) (int64, error)
	// NextHole returns the offset of the first hole at or after off, or the end of the file.
	NextHole(off int64) (int64, error)
}

func (f *osFile) NextHole(off int64) (int64, error) {
	at, err := unix.Seek(f.fd, off, unix.SEEK_HOLE)
	return at, f.error("seek hole", err)
}

func (f *osFile) NextData(off int64) (int64, error) {
	at, err := unix.Seek(f.fd, off, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return 0, io.EOF
	}
	return at, f.error("seek data", err)
}

func (f *osFile) StartWriteback(off, n int64) error {
	_, err := retry(func() (int, error) { return 0, unix.SyncFileRange(f.fd, off, n, unix.SYNC_FILE_RANGE_WRITE) })
	return f.error("start writeback", err)
}

func (f *osFile) Allocate(bytes int64) error { return f.fallocate(0, 0, bytes) }

func (f *osFile) PunchHole(off, n int64) error {
	return f.fallocate(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}

func (f *osFile) fallocate(mode uint32, off, n int64) error {
	_, err := retry(func() (int, error) { return 0, unix.Fallocate(f.fd, mode, off, n) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("%w: %w", errdefs.ErrNotSupported, f.error("fallocate", err))
	}
	return f.error("fallocate", err)
}

func (f *osFile) Truncate(bytes int64) error {
	_, err := retry(func() (int, error) { return 0, unix.Ftruncate(f.fd, bytes) })
	return f.error("truncate", err)
}

// maxParts is the maximum number of buffers in one system call.
const maxParts = 1024

func (f *osFile) WriteAllAt(parts [][]byte, off int64) (int, error) {
	n, err := writeAll(parts, off, func(parts [][]byte, off int64) (int, error) {
		return retry(func() (int, error) { return unix.Pwritev(f.fd, parts, off) })
	})
	return n, f.error("write", err)
}

// writeAll writes all parts. call may write less than requested. writeAll stops if it writes
// nothing.
func writeAll(parts [][]byte, off int64, call func(parts [][]byte, off int64) (int, error)) (n int, _ error) {
	parts = append([][]byte(nil), parts...)
	for len(parts) > 0 {
		m, err := call(parts[:min(len(parts), maxParts)], off+int64(n))
		if err != nil {
			return n, err
		}
		n += m
		left, moved := len(parts), m
		for len(parts) > 0 && m >= len(parts[0]) {
			m -= len(parts[0])
			parts = parts[1:]
		}
		if moved == 0 && len(parts) == left {
			return n, io.ErrShortWrite
		}
		if len(parts) > 0 {
			parts[0] = parts[0][m:]
		}
	}
	return n, nil
}
