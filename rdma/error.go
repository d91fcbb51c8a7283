package rdma

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
)

// Error is a verb that was refused. errors.Is finds its sentinel of errdefs and its errno.
type Error struct {
	Call  string        // the native function: "ibv_reg_mr"
	Args  string        // the arguments that matter: "bytes=4096"
	Errno syscall.Errno // as the verb answered it; zero where it answered without one
	Text  string        // what is known beyond the errno; may be empty
	Kind  error         // a sentinel of errdefs, or nil
}

// NewError makes the error of a control verb. EBUSY is ErrBusy, ENOMEM and EAGAIN are ErrNoMemory, EINVAL, EFAULT and
// ERANGE are ErrInvalid, EOPNOTSUPP, ENOSYS, EPROTONOSUPPORT, EPERM and EACCES are ErrNotSupported, ENODEV, ENXIO and EIO
// are ErrBroken, ENOENT is ErrNotFound.
func NewError(call, args string, errno syscall.Errno, text string) *Error {
	return &Error{Call: call, Args: args, Errno: errno, Text: text, Kind: kindOf(errno)}
}

// NewPostError makes the error of posting a request: as NewError, but that ENOMEM and EAGAIN, with which providers answer
// when a queue is full, are ErrBusy.
func NewPostError(call, args string, errno syscall.Errno, text string) *Error {
	e := NewError(call, args, errno, text)
	if errno == unix.ENOMEM || errno == unix.EAGAIN {
		e.Kind = errdefs.ErrBusy
	}
	return e
}

func kindOf(errno syscall.Errno) error {
	switch errno {
	case unix.EBUSY:
		return errdefs.ErrBusy
	case unix.ENOMEM, unix.EAGAIN:
		return errdefs.ErrNoMemory
	case unix.EINVAL, unix.EFAULT, unix.ERANGE:
		return errdefs.ErrInvalid
	case unix.EOPNOTSUPP, unix.ENOSYS, unix.EPROTONOSUPPORT, unix.EPERM, unix.EACCES:
		return errdefs.ErrNotSupported
	case unix.ENODEV, unix.ENXIO, unix.EIO:
		return errdefs.ErrBroken
	case unix.ENOENT:
		return errdefs.ErrNotFound
	default:
		return nil
	}
}

// Error gives call, arguments, the errno's name and number, and what else is known.
func (e *Error) Error() string {
	s := fmt.Sprintf("%s(%s)", e.Call, e.Args)
	if e.Errno != 0 {
		s += fmt.Sprintf(": %s (%d)", errnoName(e.Errno), int(e.Errno))
	}
	if e.Text != "" {
		s += ": " + e.Text
	}
	return s
}

func errnoName(e syscall.Errno) string {
	if n := unix.ErrnoName(e); n != "" {
		return n
	}
	return "errno"
}

// Unwrap returns the sentinel to decide by and the errno.
func (e *Error) Unwrap() []error {
	var errs []error
	if e.Kind != nil {
		errs = append(errs, e.Kind)
	}
	if e.Errno != 0 {
		errs = append(errs, e.Errno)
	}
	return errs
}

// WCError is how a work request failed.
type WCError struct {
	WRID      uint64
	Status    WCStatus
	Opcode    WCOpcode // devices need not set it when a request fails: the poster knows it by WRID
	VendorErr uint32
	QPNum     uint32
	Cause     error // WC.Cause; may be nil
}

// Error names the status and what it was the status of.
func (e *WCError) Error() string {
	s := fmt.Sprintf("work request %#x of queue pair %d (%s): %s (%d), vendor error %#x", e.WRID, e.QPNum, e.Opcode, e.Status, uint32(e.Status), e.VendorErr)
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap returns the sentinel to decide by and the cause, as far as there are any. The sentinel is ErrInvalid where the
// request, its keys or its bounds were wrong, ErrBusy where the peer had no receive posted for too long, and ErrBroken for
// WCWRFlushErr: an earlier request failed. There is none where the peer or the device failed this very request.
func (e *WCError) Unwrap() []error {
	var errs []error
	if kind := e.kind(); kind != nil {
		errs = append(errs, kind)
	}
	if e.Cause != nil {
		errs = append(errs, e.Cause)
	}
	return errs
}

func (e *WCError) kind() error {
	switch e.Status {
	case WCLocLenErr, WCLocQPOpErr, WCLocProtErr, WCLocAccessErr, WCRemInvReqErr, WCRemAccessErr, WCBadRespErr:
		return errdefs.ErrInvalid
	case WCRNRRetryExcErr:
		return errdefs.ErrBusy
	case WCWRFlushErr:
		return errdefs.ErrBroken
	default:
		return nil
	}
}
