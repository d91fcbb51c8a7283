package share

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
)

// process is the one at the other end of a connection: children that it has forked may keep that open after its death. Nil is one that
// cannot be named: it is in another PID namespace, or the kernel has no descriptors of processes.
type process struct {
	file *os.File
	raw  syscall.RawConn
}

// openProcess returns the process of that number, or nil. ErrLost if it is gone.
func openProcess(pid int32) (*process, error) {
	if pid <= 0 {
		return nil, nil
	}
	fd, err := unix.PidfdOpen(int(pid), unix.PIDFD_NONBLOCK)
	switch {
	case errors.Is(err, unix.ESRCH):
		return nil, fmt.Errorf("process %d is gone: %w", pid, errdefs.ErrLost)
	case err != nil:
		return nil, nil //nolint:nilerr // the connection has to do
	}
	p := &process{file: os.NewFile(uintptr(fd), "process")}
	if p.raw, err = p.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, p.file.Close())
	}
	return p, nil
}

// live returns why the process is not, or nil. It does not block.
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

// wait returns nil once the process has ended, or an error once p is closed.
func (p *process) wait() error {
	return p.raw.Read(func(fd uintptr) bool { return exited(int(fd)) })
}

func (p *process) close() error {
	if p == nil {
		return nil
	}
	return p.file.Close()
}

// exited reports whether the process of that descriptor has.
func exited(pidfd int) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1
}
