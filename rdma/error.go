package rdma

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
)

// InstallVerbs is the remedy for a missing libibverbs.
const InstallVerbs = "install rdma-core (Debian: libibverbs1 and ibverbs-providers)"

// Error is a failed verb. errors.Is finds its sentinel of errdefs and its errno.
type Error struct {
	Call  string        // the native function: "ibv_reg_mr"
	Args  string        // the relevant arguments: "bytes=4096"
	Errno syscall.Errno // errno of the verb; zero if it returned none
	Text  string        // additional information; may be empty
	Kind  error         // a sentinel of errdefs, or nil
}

// NewError returns the error of a failed verb other than a post. It maps errno to a sentinel: EBUSY
// to ErrBusy; ENOMEM and EAGAIN to ErrNoMemory; EINVAL, EFAULT and ERANGE to ErrInvalid;
// EOPNOTSUPP, ENOSYS, EPROTONOSUPPORT, EPERM and EACCES to ErrNotSupported; ENODEV, ENXIO and EIO
// to ErrBroken; ENOENT to ErrNotFound.
func NewError(call, args string, errno syscall.Errno, text string) *Error {
	return &Error{Call: call, Args: args, Errno: errno, Text: text, Kind: kindOf(errno)}
}

// NewPostError returns the error of posting a request. Unlike NewError it maps ENOMEM and EAGAIN,
// which mean a full queue, to ErrBusy.
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

// Error returns the call, its arguments, the errno and the additional information.
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

// Unwrap returns the sentinel and the errno.
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

// WCError is the failure of a work request.
type WCError struct {
	WRID   uint64
	Status WCStatus
	// Opcode may be unset for a failed request. Use WRID to find the request.
	Opcode    WCOpcode
	VendorErr uint32
	QPNum     uint32
	Cause     error // WC.Cause; may be nil
}

// Error returns the status and the request.
func (e *WCError) Error() string {
	s := fmt.Sprintf("work request %#x of queue pair %d (%s): %s (%d), vendor error %#x", e.WRID, e.QPNum, e.Opcode, e.Status, uint32(e.Status), e.VendorErr)
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap returns the sentinel and the cause, if any. The sentinel is ErrInvalid if the request, its
// keys or its bounds were wrong. It is ErrBusy if the peer had no receive posted for too long, and
// ErrBroken for WCWRFlushErr, which means that an earlier request failed. Failures of the peer or
// of the device have no sentinel.
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
