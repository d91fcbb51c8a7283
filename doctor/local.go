package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/sys/uring"
)

// directBytes is the length of the write in the O_DIRECT probe. It is a multiple of every common
// logical block size.
const directBytes = 4 << 10

// Local returns the machine on which the process runs. The caller provides the functions for GPUs
// and libraries, because other packages contain the bindings.
func Local(cuda func(context.Context) (CUDA, error), cuFile func(ctx context.Context, dirs []string) CuFileProbe, library func(name string) error) Machine {
	return Machine{
		Files:      osFiles(),
		CPUs:       runtime.NumCPU(),
		CUDA:       cuda,
		CuFile:     cuFile,
		Library:    library,
		IOUring:    uring.Probe,
		OpenFiles:  openFiles,
		MemoryLock: memoryLock,
		StatFS:     statFS,
		DirectIO:   tryDirectIO,
	}
}

func openFiles() (soft, hard uint64, err error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, 0, fmt.Errorf("read the limit on descriptors: %w", err)
	}
	return l.Cur, l.Max, nil
}

func memoryLock() (soft, hard uint64, err error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		return 0, 0, fmt.Errorf("read the limit of locked memory: %w", err)
	}
	return l.Cur, l.Max, nil
}

func statFS(dir string) (total, free int64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	block := s.Frsize
	if block == 0 {
		block = s.Bsize
	}
	return int64(s.Blocks) * block, int64(s.Bavail) * block, nil
}

// tryDirectIO writes one aligned page to a file without a name, so that no file remains even after
// a crash.
func tryDirectIO(dir string) error {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0o600)
	switch {
	case errors.Is(err, unix.EINVAL):
		return notSupported("the file system refuses O_DIRECT (%w)", err)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EISDIR):
		return fmt.Errorf("not tried: the file system has no unnamed files (O_TMPFILE: %w)", err)
	case err != nil:
		return fmt.Errorf("not tried: open an unnamed file: %w", err)
	}
	return errors.Join(writeDirect(fd), unix.Close(fd))
}

func writeDirect(fd int) error {
	// O_DIRECT requires page-aligned memory, and the Go heap does not guarantee that.
	page, err := unix.Mmap(-1, 0, directBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return fmt.Errorf("not tried: map a page: %w", err)
	}
	n, err := unix.Pwrite(fd, page, 0)
	switch {
	case errors.Is(err, unix.EINVAL):
		err = notSupported("an aligned write with O_DIRECT is refused (%w)", err)
	case err != nil:
		err = fmt.Errorf("write with O_DIRECT: %w", err)
	case n != len(page):
		err = fmt.Errorf("write with O_DIRECT: %d of %d bytes", n, len(page))
	}
	return errors.Join(err, unix.Munmap(page))
}
