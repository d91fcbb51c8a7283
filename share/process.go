package share

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
)

// process is the peer process of a connection. It is watched because forked children may keep the
// connection open after its death. A nil *process is a process that cannot be identified: the
// kernel has no pidfd for the peer and the process is in another PID namespace.
type process struct {
	file *os.File
	raw  syscall.RawConn
}

// openProcess returns the process with ID pid, or nil if it cannot be opened. It returns ErrLost if
// the process has ended.
func openProcess(pid int32) (*process, error) {
	if pid <= 0 {
		return nil, nil
	}
	fd, err := unix.PidfdOpen(int(pid), unix.PIDFD_NONBLOCK)
	switch {
	case errors.Is(err, unix.ESRCH):
		return nil, fmt.Errorf("process %d is gone: %w", pid, errdefs.ErrLost)
	case err != nil:
		return nil, nil //nolint:nilerr // then only the connection is watched
	}
	return newProcess(fd)
}

// peerProcess returns the process that connected c. pid is its process ID, or 0 if it is in another
// PID namespace. Kernels before 6.5 only have the ID, which may have been reused.
func peerProcess(c *net.UnixConn, pid int32) (*process, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var failed error
	if err := raw.Control(func(s uintptr) { fd, failed = unix.GetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_PEERPIDFD) }); err != nil {
		return nil, err
	}
	switch {
	case errors.Is(failed, unix.ESRCH):
		return nil, fmt.Errorf("process %d is gone: %w", pid, errdefs.ErrLost)
	case failed != nil:
		return openProcess(pid)
	}
	// otherwise closing the descriptor would not end a wait
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return newProcess(fd)
}

// newProcess returns the process for a non-blocking pidfd.
func newProcess(fd int) (p *process, err error) {
	p = &process{file: os.NewFile(uintptr(fd), "process")}
	if p.raw, err = p.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, p.file.Close())
	}
	return p, nil
}

// live returns an error if the process has ended. It does not block.
func (p *process) live() error {
	if p == nil {
		return nil
	}
	ended := false
	if err := p.raw.Control(func(fd uintptr) { ended = exited(int(fd)) }); err != nil {
		return errImportClosed
	}
	if ended {
		return errGone
	}
	return nil
}

// wait returns nil when the process has ended, or an error when p is closed.
func (p *process) wait() error {
	return p.raw.Read(func(fd uintptr) bool { return exited(int(fd)) })
}

func (p *process) close() error {
	if p == nil {
		return nil
	}
	return p.file.Close()
}

// exited reports whether the process of the pidfd has ended.
func exited(pidfd int) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1
}
