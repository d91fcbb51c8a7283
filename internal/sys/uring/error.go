package uring

import (
	"fmt"
	"syscall"

	"github.com/kvlane/kvlane/errdefs"
)

// OpError is the error of a failed request. It wraps the errno and a sentinel of package errdefs,
// if the errno has one.
type OpError struct {
	Op    Opcode
	FD    int
	Off   int64 // offset in the file, bytes
	Len   int64
	Errno syscall.Errno
}

// Error implements error.
func (e *OpError) Error() string {
	return fmt.Sprintf("%s %d bytes at byte %d of descriptor %d by io_uring: %v", e.Op, e.Len, e.Off, e.FD, e.Errno)
}

// Unwrap returns the errno and its sentinel.
func (e *OpError) Unwrap() []error {
	if s := sentinels[e.Errno]; s != nil {
		return []error{e.Errno, s}
	}
	return []error{e.Errno}
}

var sentinels = map[syscall.Errno]error{
	syscall.EBADF:      errdefs.ErrInvalid,
	syscall.EINVAL:     errdefs.ErrInvalid,
	syscall.EFAULT:     errdefs.ErrInvalid,
	syscall.ENOSPC:     errdefs.ErrNoSpace,
	syscall.EDQUOT:     errdefs.ErrNoSpace,
	syscall.EROFS:      errdefs.ErrReadOnly,
	syscall.ENOMEM:     errdefs.ErrNoMemory,
	syscall.EAGAIN:     errdefs.ErrBusy,
	syscall.EBUSY:      errdefs.ErrBusy,
	syscall.ECANCELED:  errdefs.ErrCanceled,
	syscall.EOPNOTSUPP: errdefs.ErrNotSupported,
}

// unavailable returns the error for a failed setup. It wraps ErrNotSupported if a retry would also
// fail.
func unavailable(errno syscall.Errno) error {
	switch errno {
	case syscall.ENOSYS:
		return fmt.Errorf("the kernel has no io_uring, or a sandbox hides it (%w): %w", errno, errdefs.ErrNotSupported)
	case syscall.EPERM, syscall.EACCES:
		return fmt.Errorf("the kernel or a sandbox forbids io_uring to this process (%w): %w", errno, errdefs.ErrNotSupported)
	case syscall.ENOMEM:
		return fmt.Errorf("io_uring_setup: %w: %w", errno, errdefs.ErrNoMemory)
	default:
		return fmt.Errorf("io_uring_setup: %w", errno)
	}
}
