package uring

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Argument is the argument of io_uring_register.
type Argument = unsafe.Pointer

// API is a table of the system calls of io_uring. System returns the kernel's; tests may use or
// wrap their own. If an errno is not zero, the other results are undefined.
type API struct {
	Setup    func(entries uint32, p *Params) (fd int, errno syscall.Errno)
	Enter    func(fd int, submit, atLeast, flags uint32) (submitted int, errno syscall.Errno)
	Register func(fd int, what uint32, arg Argument, n uint32) syscall.Errno
}

// System returns the kernel's system calls. If atLeast is positive, Enter blocks the thread until
// that many completions are available.
func System() API {
	return API{
		Setup: func(entries uint32, p *Params) (int, syscall.Errno) {
			fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(p)), 0)
			return int(fd), errno
		},
		Enter: func(fd int, submit, atLeast, flags uint32) (int, syscall.Errno) {
			n, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(fd), uintptr(submit), uintptr(atLeast), uintptr(flags), 0, 0)
			return int(n), errno
		},
		Register: func(fd int, what uint32, arg Argument, n uint32) syscall.Errno {
			_, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(fd), uintptr(what), uintptr(arg), uintptr(n), 0, 0)
			return errno
		},
	}
}
