package dirfs

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
)

// Sizer is a File that room on the disk can be taken for before it is written, and that can be cut. Those of OS are.
type Sizer interface {
	// Allocate makes the file so many bytes long and takes the room for them; what is new reads as zeros. ErrNotSupported where the
	// file system cannot.
	Allocate(bytes int64) error
	// Truncate cuts the file to so many bytes.
	Truncate(bytes int64) error
	// PunchHole frees the disk space of n bytes at off, which read as zeros afterwards. The file
	// keeps its length. It returns ErrNotSupported if the file system cannot do that.
	PunchHole(off, n int64) error
}

// Gatherer is a File that writes pieces of memory one behind the other without copying them together. Those of OS do.
type Gatherer interface {
	WriteAllAt(parts [][]byte, off int64) (int, error)
}

// WritebackStarter is a File that can be told to begin with what a later Sync will wait for. Those of OS are.
type WritebackStarter interface {
	// StartWriteback has the system begin to bring to the disk what was written to n bytes at off. It waits for room in the disk's
	// queue at most. Nothing is durable before Sync, which says what failed.
	StartWriteback(off, n int64) error
}

// DataFinder is a File that can skip its holes. The files of OS can.
type DataFinder interface {
	// NextData returns the first offset from off on that may hold data, or io.EOF where only holes
	// follow.
	NextData(off int64) (int64, error)
	// NextHole returns the first offset from off on that begins a hole, or the end of the file.
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

// maxParts is how many pieces the system takes with one call.
const maxParts = 1024

func (f *osFile) WriteAllAt(parts [][]byte, off int64) (int, error) {
	n, err := writeAll(parts, off, func(parts [][]byte, off int64) (int, error) {
		return retry(func() (int, error) { return unix.Pwritev(f.fd, parts, off) })
	})
	return n, f.error("write", err)
}

// writeAll writes all parts by calls that may write less; one that writes nothing ends it.
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
