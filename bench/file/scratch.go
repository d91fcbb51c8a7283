package file

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// readTag is the tag of the pattern in the file for reads. Each written batch has another tag above
// it.
const readTag = 1 << 60

// fillStep is the length of one write when a file is filled.
const fillStep = 8 << 20

// scratch is a scratch file.
type scratch struct {
	bytes            int64
	direct, buffered int         // descriptors; direct is -1 if the file system has no O_DIRECT
	region           *mem.Region // the file as memory for streams, or nil
}

// create creates and opens a file. After an error, s has the descriptors that were opened.
func create(name string, bytes int64) (s *scratch, err error) {
	s = &scratch{bytes: bytes, direct: -1, buffered: -1}
	defer func() { err = s.explain(err) }()
	if s.buffered, err = unix.Open(name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600); err != nil {
		return s, fmt.Errorf("open: %w", err)
	}
	// Check first, because some file systems report the lack of space only when they are full.
	var fs unix.Statfs_t
	if err := unix.Fstatfs(s.buffered, &fs); err == nil && int64(fs.Bavail)*fs.Bsize < bytes {
		return s, fmt.Errorf("%s are free: %w", bench.BytesText(int64(fs.Bavail)*fs.Bsize), unix.ENOSPC)
	}
	if err := unix.Ftruncate(s.buffered, bytes); err != nil {
		return s, fmt.Errorf("set its length: %w", err)
	}
	if s.direct, err = unix.Open(name, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0); errors.Is(err, unix.EINVAL) {
		s.direct = -1
	} else if err != nil {
		return s, fmt.Errorf("open with O_DIRECT: %w", err)
	}
	return s, nil
}

// explain adds the file to err and converts errors of a full disk to ErrNoSpace.
func (s *scratch) explain(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		err = fmt.Errorf("%w: %w", err, errdefs.ErrNoSpace)
	}
	return fmt.Errorf("make a scratch file of %s: %w", bench.BytesText(s.bytes), err)
}

// fill writes the pattern of tag to the file and syncs it.
func (s *scratch) fill(ctx context.Context, tag uint64) (err error) {
	defer func() { err = s.explain(err) }()
	if err := unix.Fallocate(s.buffered, 0, 0, s.bytes); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("allocate: %w", err)
	}
	b := make([]byte, min(s.bytes, fillStep))
	for off := int64(0); off < s.bytes; off += int64(len(b)) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		b = b[:min(int64(len(b)), s.bytes-off)]
		err := bench.Parallel(int64(len(b))/align, func(from, to int64) error {
			bench.WritePattern(b[from*align:to*align], tag, off+from*align)
			return nil
		})
		if err = errors.Join(err, transfer(unix.Pwrite, s.buffered, b, off)); err != nil {
			return err
		}
	}
	if err := unix.Fsync(s.buffered); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return nil
}

// transfer reads or writes all of b with call, which is pread or pwrite.
func transfer(call func(int, []byte, int64) (int, error), fd int, b []byte, off int64) error {
	for len(b) > 0 {
		n, err := call(fd, b, off)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("%d bytes at byte %d: %w", len(b), off, err)
		case n == 0:
			return fmt.Errorf("%d bytes at byte %d: the file ends: %w", len(b), off, errdefs.ErrCorrupt)
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// fd returns the descriptor for raw access: buffered for reads from the page cache, otherwise
// direct.
func (s *scratch) fd(from From) int {
	if from == PageCache {
		return s.buffered
	}
	return s.direct
}

// drop drops the file from the page cache. The file must be synced.
func (s *scratch) drop() error {
	if err := unix.Fadvise(s.buffered, 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("drop the file from the page cache: %w", err)
	}
	return nil
}

// warm reads the file into the page cache. b is the buffer.
func (s *scratch) warm(ctx context.Context, b []byte) error {
	for off := int64(0); off < s.bytes; off += int64(len(b)) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := transfer(unix.Pread, s.buffered, b[:min(int64(len(b)), s.bytes-off)], off); err != nil {
			return fmt.Errorf("read the file into the page cache: %w", err)
		}
	}
	return nil
}

func (s *scratch) close() error {
	var errs []error
	for _, fd := range []int{s.direct, s.buffered} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	return errors.Join(errs...)
}

// fileSystems maps magic numbers of statfs(2) to names.
var fileSystems = map[int64]string{
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs",
	unix.NFS_SUPER_MAGIC: "nfs", unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.F2FS_SUPER_MAGIC: "f2fs",
}

// fileSystem returns the name of the file system of a directory.
func fileSystem(dir string) string {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return "unknown"
	}
	if name := fileSystems[s.Type]; name != "" {
		return name
	}
	return fmt.Sprintf("type %#x", s.Type)
}
