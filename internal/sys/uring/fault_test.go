package uring_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/uring"
)

// If a sandbox or kernel does not provide rings, the error is definite. A lack of resources is not.
func TestProbeReturnsTheReason(t *testing.T) {
	for errno, want := range map[syscall.Errno]string{
		syscall.ENOSYS: "has no io_uring", syscall.EPERM: "forbids io_uring", syscall.EACCES: "forbids io_uring", syscall.EMFILE: "", syscall.ENOMEM: "",
	} {
		a := uring.System()
		a.Setup = func(uint32, *uring.Params) (int, syscall.Errno) { return -1, errno }
		err := uring.ProbeAPI(a)
		if !errors.Is(err, errno) || errors.Is(err, errdefs.ErrNotSupported) != (want != "") || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", errno, err)
		}
	}
	if err := uring.Probe(); err != nil && !errors.Is(err, errdefs.ErrNotSupported) {
		t.Error(err)
	}
}

// A kernel that lacks an opcode, or the call that reports opcodes, is too old. A sandbox may also
// forbid just that call.
func TestProbeAsksForOpcodes(t *testing.T) {
	open(t, uring.Options{})
	a := uring.System()
	a.Register = func(_ int, _ uint32, arg unsafe.Pointer, _ uint32) syscall.Errno {
		// struct io_uring_probe with the five opcodes of Linux 5.1.
		b := unsafe.Slice((*byte)(arg), 16+8*5)
		b[1] = 5
		for i := range 5 {
			b[16+8*i+2] = 1
		}
		return 0
	}
	if err := uring.ProbeAPI(a); !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "opcode 22 (read)") || strings.Contains(err.Error(), "opcode 4 ") {
		t.Error(err)
	}
	for _, errno := range []syscall.Errno{syscall.EINVAL, syscall.EPERM} {
		a.Register = func(int, uint32, unsafe.Pointer, uint32) syscall.Errno { return errno }
		if err := uring.ProbeAPI(a); !errors.Is(err, errdefs.ErrNotSupported) {
			t.Errorf("%v: %v", errno, err)
		}
	}
}

// A ring was refused because of missing opcodes that kvlane does not use.
func TestDefectRingNeedsUnusedFeatures(t *testing.T) {
	open(t, uring.Options{})
	a := uring.System()
	a.Register = func(_ int, _ uint32, arg unsafe.Pointer, _ uint32) syscall.Errno {
		b := unsafe.Slice((*byte)(arg), 16+8*24)
		b[1] = 24
		for _, op := range []int{4, 5, 22, 23} { // reads and writes, of registered buffers and others
			b[16+8*op+2] = 1
		}
		return 0
	}
	if err := uring.ProbeAPI(a); err != nil {
		t.Error(err)
	}
}

// If the limit of locked memory prevents the registration of buffers, requests work without it.
func TestRequestsGoOnWithoutRegistration(t *testing.T) {
	a := uring.System()
	register := a.Register
	a.Register = func(fd int, what uint32, arg unsafe.Pointer, n uint32) syscall.Errno {
		if what == 0 {
			return syscall.ENOMEM
		}
		return register(fd, what, arg, n)
	}
	fd, content := file(t, page, 0)
	r, b := open(t, uring.Options{API: a}), memory(t, page)
	if err := r.RegisterBuffers(b); !errors.Is(err, errdefs.ErrNotSupported) || !errors.Is(err, syscall.ENOMEM) {
		t.Error(err)
	}
	c := all(t, r, []uring.Op{{Code: uring.Read, FD: fd, Buf: b, Buffer: 1}})[0]
	if c.Err != nil || string(b) != string(content) {
		t.Errorf("%+v", c)
	}
}

// script returns an API whose submitting calls of Enter return results in turn: an errno, or the
// number of requests to pass to the kernel.
func script(t *testing.T, results ...any) uring.API {
	t.Helper()
	a := uring.System()
	enter := a.Enter
	a.Enter = func(fd int, submit, atLeast, flags uint32) (int, syscall.Errno) {
		if len(results) == 0 || submit == 0 {
			return enter(fd, submit, atLeast, flags)
		}
		result := results[0]
		results = results[1:]
		if errno, ok := result.(syscall.Errno); ok {
			return 0, errno
		}
		most, _ := result.(int)
		return enter(fd, min(submit, uint32(most)), atLeast, flags)
	}
	return a
}

func TestSubmittingOutlastsInterruptsAndPartialAnswers(t *testing.T) {
	r := open(t, uring.Options{API: script(t, unix.EINTR, 2, unix.EINTR, 1)})
	if n, err := r.Submit(make([]uring.Op, 5)...); n != 5 || err != nil {
		t.Fatal(n, err)
	}
	got := make([]uring.Completion, 5)
	for n := 0; n < 5; {
		k, err := r.Wait(got[n:])
		if n += k; err != nil {
			t.Fatal(err)
		}
	}
}

// Requests that the kernel does not accept stay with the caller and are not waited for.
func TestDefectWhatTheKernelDoesNotTakeIsNotInFlight(t *testing.T) {
	for _, errno := range []syscall.Errno{unix.EAGAIN, unix.EBUSY} {
		r := open(t, uring.Options{Depth: 4, API: script(t, errno, 1, errno, 4)})
		ops := []uring.Op{{Token: 0}, {Token: 1}, {Token: 2}}
		if n, err := r.Submit(ops...); n != 0 || !errors.Is(err, errdefs.ErrBusy) || !errors.Is(err, errno) || r.InFlight() != 0 {
			t.Fatalf("%d, %v, %d in flight", n, err, r.InFlight())
		}
		if n, err := r.Submit(ops...); n != 1 || err != nil || r.InFlight() != 1 {
			t.Fatalf("%d, %v, %d in flight", n, err, r.InFlight())
		}
		seen := make(map[int]bool)
		if n, err := r.Submit(ops[1:]...); n != 2 || err != nil {
			t.Fatal(n, err)
		}
		for got := make([]uring.Completion, 4); len(seen) < 3; {
			n, err := r.Wait(got)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range got[:n] {
				seen[token(c)] = true
			}
		}
	}
}

// If the state of a ring is unknown, it accepts no more requests, and does not report memory as
// free.
func TestAFailureOfTheKernelBreaksTheRing(t *testing.T) {
	a := uring.System()
	broken, enter := true, a.Enter
	a.Enter = func(fd int, submit, atLeast, flags uint32) (int, syscall.Errno) {
		if broken && atLeast > 0 {
			return 0, unix.EBADR
		}
		return enter(fd, submit, atLeast, flags)
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	r, b := open(t, uring.Options{API: a}), memory(t, page)
	if n, err := r.Submit(uring.Op{Code: uring.Read, FD: p[0], Buf: b}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if _, err := r.Wait(make([]uring.Completion, 1)); !errors.Is(err, errdefs.ErrBroken) || !errors.Is(err, unix.EBADR) {
		t.Error(err)
	}
	if n, err := r.Submit(uring.Op{Code: uring.NOP}); n != 0 || !errors.Is(err, errdefs.ErrBroken) {
		t.Error(n, err)
	}
	if err := r.Close(); !errors.Is(err, errdefs.ErrBroken) || r.InFlight() != 1 {
		t.Errorf("closed with a request in flight: %v", err)
	}
	broken = false // the kernel answers again: running requests end, and the ring closes
	if _, err := unix.Write(p[1], []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	_ = errors.Join(unix.Close(p[0]), unix.Close(p[1])) // pipe of the test
}
