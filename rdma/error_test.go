package rdma_test

import (
	"errors"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
)

func TestError(t *testing.T) {
	err := error(rdma.NewError("ibv_reg_mr", "bytes=4096", unix.ENOMEM, "memlock is 64 KiB"))
	if want := "ibv_reg_mr(bytes=4096): ENOMEM (12): memlock is 64 KiB"; err.Error() != want {
		t.Errorf("%q, not %q", err, want)
	}
	if !errors.Is(err, errdefs.ErrNoMemory) || !errors.Is(err, unix.ENOMEM) {
		t.Errorf("%v wraps neither its sentinel nor its errno", err)
	}
	for errno, want := range map[syscall.Errno]error{
		unix.EBUSY: errdefs.ErrBusy, unix.EINVAL: errdefs.ErrInvalid, unix.EOPNOTSUPP: errdefs.ErrNotSupported,
		unix.EIO: errdefs.ErrBroken, unix.ENOENT: errdefs.ErrNotFound,
	} {
		if err := rdma.NewError("call", "", errno, ""); !errors.Is(err, want) {
			t.Errorf("%v is not %v", err, want)
		}
	}
	if err := rdma.NewPostError("ibv_post_send", "", unix.ENOMEM, ""); !errors.Is(err, errdefs.ErrBusy) || errors.Is(err, errdefs.ErrNoMemory) {
		t.Errorf("a full queue is %v", err)
	}
	if err := (&rdma.Error{Call: "call", Text: "text"}); err.Error() != "call(): text" || len(err.Unwrap()) != 0 {
		t.Errorf("without an errno: %q, %v", err, err.Unwrap())
	}
	if err := rdma.NewError("call", "", 0xfff, ""); err.Error() != "call(): errno (4095)" {
		t.Errorf("unknown errno: %q", err)
	}
}

// TestCompletionError checks that the error contains all information about a failed completion.
func TestCompletionError(t *testing.T) {
	if err := new(rdma.WC).Err(); err != nil {
		t.Errorf("success is %v", err)
	}
	cause := errors.New("the GPU fell off the bus")
	wc := rdma.WC{WRID: 0x1f, Status: rdma.WCRemAccessErr, Opcode: rdma.WCRDMAWrite, VendorErr: 0x88, QPNum: 17, Cause: cause}
	err := wc.Err()
	var e *rdma.WCError
	if !errors.As(err, &e) || *e != (rdma.WCError{WRID: 0x1f, Status: rdma.WCRemAccessErr, Opcode: rdma.WCRDMAWrite, VendorErr: 0x88, QPNum: 17, Cause: cause}) {
		t.Fatalf("%#v", err)
	}
	const want = "work request 0x1f of queue pair 17 (RDMA_WRITE): REM_ACCESS_ERR (10), vendor error 0x88: the GPU fell off the bus"
	if err.Error() != want {
		t.Errorf("%q, not %q", err, want)
	}
	if !errors.Is(err, cause) {
		t.Error("the cause is lost")
	}
	for status, sentinel := range map[rdma.WCStatus]error{
		rdma.WCLocProtErr: errdefs.ErrInvalid, rdma.WCRemAccessErr: errdefs.ErrInvalid, rdma.WCLocLenErr: errdefs.ErrInvalid,
		rdma.WCRNRRetryExcErr: errdefs.ErrBusy, rdma.WCWRFlushErr: errdefs.ErrBroken, rdma.WCRetryExcErr: nil, rdma.WCGeneralErr: nil,
	} {
		err := (&rdma.WC{Status: status}).Err()
		for _, known := range []error{errdefs.ErrInvalid, errdefs.ErrBusy, errdefs.ErrBroken} {
			if is := errors.Is(err, known); is != (known == sentinel) { //nolint:errorlint // identity is intended
				t.Errorf("%v is %q: %v", err, known, is)
			}
		}
	}
}
