package file_test

import (
	"bytes"
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/sys/uring"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/file"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// openRing opens a stream whose path uring uses the system calls of a, and whose completions fail
// as plan demands.
func openRing(t *testing.T, o file.Options, a uring.API, plan *fault.Plan) *file.Stream {
	t.Helper()
	if err := uring.Probe(); errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(t, "uring", err.Error())
	}
	s := closeAtEnd(t, open(t, o))
	if err := s.UseAPI(within(t), a, plan); err != nil {
		t.Fatal(err)
	}
	return s
}

// writeAll writes n scattered bytes to a file through staging memory, and compares the file.
func writeAll(t *testing.T, s *file.Stream, n int64) (stream.Completion, error) {
	t.Helper()
	fs := real(t)
	r, m := fs.alloc(t, n), host.Alloc(t, 2*n)
	for i := range m.Bytes() {
		m.Bytes()[i] = byte(i / 7)
	}
	var b mem.Batch
	var want []byte
	const piece = file.Align / 2
	for off := int64(0); off < n; off += piece {
		b.Dst = append(b.Dst, mem.Extent{Region: r, Off: off, Len: piece})
		b.Src = append(b.Src, mem.Extent{Region: m, Off: 2 * off, Len: piece})
		want = append(want, m.Bytes()[2*off:][:piece]...)
	}
	ticket, err := s.Submit(within(t), &b)
	if err != nil {
		t.Fatal(err)
	}
	if err = ticket.Wait(within(t)); err == nil && !bytes.Equal(fs.memory().Read(t, mem.All(r)), want) {
		t.Error("the file differs from the written bytes")
	}
	return ticket.Completion(), err
}

// If the kernel has no memory for a request, or accepts only a part, the request is submitted
// again.
func TestURingOutlastsABusyKernel(t *testing.T) {
	a := uring.System()
	enter := a.Enter
	var calls atomic.Int64
	a.Enter = func(fd int, submit, atLeast, flags uint32) (int, syscall.Errno) {
		if submit > 0 {
			switch calls.Add(1) % 4 {
			case 1:
				return 0, unix.EAGAIN
			case 2:
				return 0, unix.EINTR
			case 3:
				submit = 1
			}
		}
		return enter(fd, submit, atLeast, flags)
	}
	o := small
	o.Path = stream.PathURing
	if c, err := writeAll(t, openRing(t, o, a, nil), 32*file.Align); err != nil || c.Path != stream.PathURing {
		t.Errorf("%+v, %v", c, err)
	}
}

// byURing returns a profile in which io_uring is the fastest path for temporary directories.
func byURing(t *testing.T) *file.Profile {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(t.TempDir(), &st); err != nil {
		t.Fatal(err)
	}
	p := new(file.Profile)
	for _, write := range []bool{false, true} {
		p.Points = append(p.Points, file.Point{Dev: st.Dev, Write: write, Bytes: file.Align, Path: stream.PathURing.String(), Depth: file.DefaultTransfers, GBps: 1})
	}
	return p
}

// A ring that accepts no more requests fails its transfers and is not used again. One batch reports
// the reason.
func TestURingThatBreaksIsGivenUp(t *testing.T) {
	a := uring.System()
	enter := a.Enter
	a.Enter = func(fd int, submit, atLeast, flags uint32) (int, syscall.Errno) {
		if submit > 0 {
			return 0, unix.EPERM
		}
		return enter(fd, submit, atLeast, flags)
	}
	o := small
	o.Profile = byURing(t)
	s := openRing(t, o, a, nil)
	for i := range 3 {
		c, err := writeAll(t, s, 8*file.Align)
		switch {
		case i == 0 && (!errors.Is(err, unix.EPERM) || !errors.Is(err, errdefs.ErrBroken)):
			t.Errorf("first batch: %v", err)
		case i > 0 && (err != nil || c.Path != stream.PathPosix || (i == 1) != errors.Is(c.GivenUp, unix.EPERM)):
			t.Errorf("batch %d: %+v: %v", i, c, err)
		}
	}
	if got := s.Stats(); got.GivenUp != 1 || got.Failed != 1 || got.Batches[stream.PathPosix] != 2 {
		t.Errorf("stats %+v", got)
	}
}

// TestNthCompletionFails fails completion N, or makes it short, for N = 0, 1, 2, ... until none is
// left.
func TestNthCompletionFails(t *testing.T) {
	both := func(t *testing.T, plan *fault.Plan) error {
		t.Helper()
		o := small
		o.Path = stream.PathURing
		s := openRing(t, o, uring.System(), plan)
		_, err := writeAll(t, s, 8*file.Align)
		r, end := real(t).alloc(t, 50_000), streamtest.Pageable(t, 50_000)
		back := streamtest.Pageable(t, 50_000)
		for i := range end.Bytes() {
			end.Bytes()[i] = byte(i / 5)
		}
		for _, b := range [][2]*mem.Region{{r, end}, {back, r}} {
			if err == nil {
				_, err = try(t, s, mem.All(b[0]), mem.All(b[1]))
			}
		}
		if err == nil && !bytes.Equal(back.Bytes(), end.Bytes()) {
			t.Error("read back wrong bytes")
		}
		return err
	}
	for _, errno := range []syscall.Errno{unix.EIO, unix.ENOSPC} {
		testkit.Sweep(t, "complete", errno, both)
	}
	for n := 0; ; n++ {
		plan := fault.New(1, fault.Nth("complete", n).Partial(nil))
		if err := both(t, plan); err != nil {
			t.Errorf("completion %d was short: %v", n, err)
		}
		if plan.Injected() == 0 {
			break
		}
	}
}

// lateFile appears to be a regular file, but is a pipe. A read waits until bytes are written to the
// pipe.
type lateFile struct {
	dirfs.File
	fd int
}

func (f lateFile) Descriptor() int { return f.fd }
func (f lateFile) Close() error    { return unix.Close(f.fd) }

// lateRead submits a read of a page that ends when the page is written to w.
func lateRead(t *testing.T, s *file.Stream) (ticket *stream.Ticket, w int) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(p[1]) })
	base, err := openDir(t, dirfs.OS(), t.TempDir()).Open("f", os.O_RDWR|os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = base.Close() })
	f, err := file.NewWith(lateFile{base, p[0]}, "late", refuseDirect)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(within(t)); err != nil {
			t.Error(err)
		}
	})
	r, err := f.Region(file.Align)
	if err == nil {
		ticket, err = s.Submit(within(t), &mem.Batch{Dst: []mem.Extent{mem.All(host.Alloc(t, file.Align))}, Src: []mem.Extent{mem.All(r)}})
	}
	if err != nil {
		t.Fatal(err)
	}
	return ticket, p[1]
}

// Transfers that were in flight when a ring broke never resolved, although the kernel had completed
// them.
func TestDefectBrokenRingStrandsTransfers(t *testing.T) {
	for _, waits := range []bool{true, false} {
		a := uring.System()
		enter := a.Enter
		var taken atomic.Int64
		a.Enter = func(fd int, submit, atLeast, flags uint32) (int, syscall.Errno) {
			if submit > 0 && taken.Add(1) > 1 {
				return 0, unix.EPERM
			}
			if atLeast > 0 && !waits {
				return 0, unix.EBADR
			}
			return enter(fd, submit, atLeast, flags)
		}
		o := small
		o.Path = stream.PathURing
		s := openRing(t, o, a, nil)
		first, w := lateRead(t, s)
		for ctx := within(t); (taken.Load() == 0 || !waits && s.Stats().Quarantined == 0) && ctx.Err() == nil; {
			time.Sleep(time.Millisecond)
		}
		if _, err := writeAll(t, s, 8*file.Align); !errors.Is(err, errdefs.ErrBroken) {
			t.Error(err)
		}
		if n := s.Stats().Quarantined; (n == 1) == waits {
			t.Errorf("%d in quarantine, where the ring can be waited for: %v", n, waits)
		}
		unresolved(t, first)
		if _, err := unix.Write(w, make([]byte, file.Align)); err != nil {
			t.Fatal(err)
		}
		if err := first.Wait(within(t)); err != nil || s.Stats().Quarantined != 0 {
			t.Errorf("a read that the kernel ended: %v; stats %+v", err, s.Stats())
		}
	}
}

// Staging memory is registered once. If that is forbidden, the kernel pins it for each transfer,
// and this was not reported.
func TestDefectUnregisteredStagingMemoryIsNotReported(t *testing.T) {
	for _, errno := range []syscall.Errno{0, unix.ENOMEM} {
		a := uring.System()
		register := a.Register
		var buffers atomic.Int64
		a.Register = func(fd int, what uint32, arg uring.Argument, n uint32) syscall.Errno {
			if what == 0 {
				if buffers.Add(1); errno != 0 {
					return errno
				}
			}
			return register(fd, what, arg, n)
		}
		o := small
		o.Path = stream.PathURing
		s := openRing(t, o, a, nil)
		for i := range 2 {
			c, err := writeAll(t, s, 16*file.Align)
			if err != nil || c.Path != stream.PathURing || (i == 0 && errno != 0) != errors.Is(c.GivenUp, unix.ENOMEM) {
				t.Errorf("%+v, %v", c, err)
			}
		}
		if n := s.Stats().Unregistered; (n == 1) != (errno != 0) {
			t.Errorf("%v: counted %d times", errno, n)
		}
		if n := buffers.Load(); n != 1 {
			t.Errorf("buffers were registered %d times", n)
		}
	}
}
