package uring_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/sys/uring"
	"github.com/kvlane/kvlane/internal/testkit"
)

const page = 4 << 10

// open opens a ring and closes it when the test ends.
func open(t *testing.T, o uring.Options) *uring.Ring {
	t.Helper()
	r, err := uring.Open(o)
	if errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(t, "io_uring", err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func memory(t *testing.T, bytes int) []byte {
	t.Helper()
	b, err := hostmem.Alloc(int64(bytes))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hostmem.Free(b); err != nil {
			t.Error(err)
		}
	})
	return b
}

func random(b []byte, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	for i := 0; i < len(b); i += 16 { // the rest is zero
		b[i] = byte(rng.Uint32())
	}
}

// file creates a file of random bytes and opens it. Without O_DIRECT it skips the test.
func file(t *testing.T, size, flags int) (fd int, content []byte) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	content = make([]byte, size)
	random(content, uint64(size))
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC|flags, 0)
	if errors.Is(err, unix.EINVAL) {
		testkit.Skip(t, "direct-io", "the file system has no O_DIRECT")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
	})
	return fd, content
}

// token returns a completion's token, which is 0 unless it was set.
func token(c uring.Completion) int {
	n, _ := c.Op.Token.(int)
	return n
}

// all submits any number of requests with tokens 0, 1, 2, ..., and returns their completions by
// token.
func all(t *testing.T, r *uring.Ring, ops []uring.Op) []uring.Completion {
	t.Helper()
	out, done := make([]uring.Completion, len(ops)), make([]uring.Completion, 7)
	for sent, ended := 0, 0; ended < len(ops); {
		n, err := r.Submit(ops[sent:]...)
		if sent += n; err != nil && !errors.Is(err, errdefs.ErrBusy) {
			t.Fatal(err)
		}
		n, err = r.Wait(done)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range done[:n] {
			out[token(c)] = c
			ended++
		}
	}
	if n := r.InFlight(); n != 0 {
		t.Errorf("%d requests in flight after all have ended", n)
	}
	return out
}

func TestReadsAndWritesMoveTheBytesOfPreadAndPwrite(t *testing.T) {
	for _, flags := range []int{0, unix.O_DIRECT} {
		for _, depth := range []int{1, 2, 3, 32, 128} {
			for _, fixed := range []bool{false, true} {
				t.Run(fmt.Sprintf("flags %#x depth %d fixed %v", flags, depth, fixed), func(t *testing.T) {
					testRoundTrip(t, flags, depth, fixed)
				})
			}
		}
	}
}

func testRoundTrip(t *testing.T, flags, depth int, fixed bool) {
	t.Helper()
	const n = 200 // more than entries
	fd, content := file(t, n*page, flags)
	b := memory(t, n*page)
	r := open(t, uring.Options{Depth: depth})
	one := func(ops []uring.Op, op uring.Op) []uring.Op {
		op.FD, op.Token = fd, len(ops)
		return append(ops, op)
	}
	place := 0
	if fixed {
		err := r.RegisterBuffers(b)
		if err != nil && !errors.Is(err, errdefs.ErrNotSupported) { // if not supported: plain requests
			t.Fatal(err)
		}
		if err == nil && !errors.Is(r.RegisterBuffers(b), errdefs.ErrExists) {
			t.Error("buffers are registered twice")
		}
		place = 1
	}
	var reads, writes []uring.Op
	for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		at := b[i*page:][:page]
		reads = one(reads, uring.Op{Code: uring.Read, Off: int64(i * page), Buf: at, Buffer: place})
		writes = one(writes, uring.Op{Code: uring.Write, Off: int64(i * page), Buf: at, Buffer: place})
	}
	moved := func(done []uring.Completion) {
		t.Helper()
		for _, c := range done {
			if c.Err != nil || c.N != page {
				t.Fatalf("%s at %d: %d bytes, %v", c.Op.Code, c.Op.Off, c.N, c.Err)
			}
		}
	}
	moved(all(t, r, reads))
	if !bytes.Equal(b, content) {
		t.Fatal("the bytes read differ from the file")
	}
	random(b, 77)
	moved(all(t, r, writes))
	back := memory(t, len(b))
	if n, err := unix.Pread(fd, back, 0); n != len(b) || err != nil || !bytes.Equal(back, b) {
		t.Errorf("pread: %d bytes, %v; equal to the written bytes: %v", n, err, bytes.Equal(back, b))
	}
}

func TestReadsAtTheEndOfAFileAreShort(t *testing.T) {
	fd, content := file(t, page+100, 0)
	b, r := memory(t, 3*page), open(t, uring.Options{})
	done := all(t, r, []uring.Op{
		{Code: uring.Read, FD: fd, Off: page, Buf: b[:page]},
		{Code: uring.Read, FD: fd, Off: 4 * page, Buf: b[page:][:page], Token: 1},
	})
	if done[0].N != 100 || done[1].N != 0 || done[0].Err != nil || done[1].Err != nil || !bytes.Equal(b[:100], content[page:]) {
		t.Errorf("completions %+v", done)
	}
}

func TestFailuresNameTheRequest(t *testing.T) {
	fd, _ := file(t, page, 0)
	dir, err := unix.Open(t.TempDir(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(dir) }() // read from
	b, r := memory(t, page), open(t, uring.Options{})
	const nowhere = 1 << 20
	done := all(t, r, []uring.Op{
		{Code: uring.Read, FD: nowhere, Off: 8192, Buf: b[:512]},
		{Code: uring.Read, FD: dir, Buf: b, Token: 1},
		{Code: uring.NOP, Token: 2},
		{Code: uring.Read, FD: fd, Buf: b, Token: 3},
	})
	var e *uring.OpError
	if !errors.As(done[0].Err, &e) || e.FD != nowhere || e.Off != 8192 || e.Len != 512 || e.Errno != syscall.EBADF ||
		!errors.Is(done[0].Err, errdefs.ErrInvalid) || !errors.Is(done[0].Err, syscall.EBADF) {
		t.Errorf("a bad descriptor: %v", done[0].Err)
	}
	if !errors.Is(done[1].Err, syscall.EISDIR) {
		t.Errorf("a directory: %v", done[1].Err)
	}
	if done[2].Err != nil || done[3].Err != nil || done[3].N != page {
		t.Errorf("valid requests next to invalid ones: %+v", done[2:])
	}
}

func TestWrongRequestsAreRefused(t *testing.T) {
	r, b := open(t, uring.Options{Depth: 2}), memory(t, page)
	for name, op := range map[string]uring.Op{
		"opcode":        {Code: 99},
		"fixed":         {Code: 4, Buf: b},
		"no buffer":     {Code: uring.Read},
		"offset":        {Code: uring.Read, Buf: b, Off: -1},
		"nothing to do": {Code: uring.NOP, Buf: b},
	} {
		if n, err := r.Submit(uring.Op{Code: uring.NOP}, op); n != 0 || !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
	if n, err := r.Wait(nil); n != 0 || !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("no room: %d, %v", n, err)
	}
	for _, depth := range []int{-1, uring.MaxDepth + 1} {
		if _, err := uring.Open(uring.Options{Depth: depth}); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("depth %d: %v", depth, err)
		}
	}
}

// A full ring returns an error. It accepts more after a completion was taken, whatever the kernel's
// limit is.
func TestNoMoreThanTheDepthIsInFlight(t *testing.T) {
	r := open(t, uring.Options{Depth: 3})
	nops := make([]uring.Op, 5)
	if n, err := r.Submit(nops...); n != 3 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if n, err := r.Submit(nops...); n != 0 || !errors.Is(err, errdefs.ErrBusy) {
		t.Fatalf("%d, %v", n, err)
	}
	if n, err := r.Wait(make([]uring.Completion, 1)); n != 1 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if n, err := r.Submit(nops...); n != 1 || err != nil || r.InFlight() != 3 || r.Depth() != 3 {
		t.Fatalf("%d, %v, %d in flight", n, err, r.InFlight())
	}
}

func TestConcurrentSubmitters(t *testing.T) {
	const submitters, each = 8, 100
	fd, content := file(t, submitters*each*512, 0)
	b, r := memory(t, len(content)), open(t, uring.Options{Depth: 16})
	var wg sync.WaitGroup
	for s := range submitters {
		wg.Go(func() {
			for i := range each {
				at := (s*each + i) * 512
				for {
					n, err := r.Submit(uring.Op{Code: uring.Read, FD: fd, Off: int64(at), Buf: b[at:][:512], Token: at})
					if n == 1 {
						break
					}
					if !errors.Is(err, errdefs.ErrBusy) {
						t.Error(err)
						return
					}
					time.Sleep(10 * time.Microsecond)
				}
			}
		})
	}
	seen := make(map[int]bool)
	for done := make([]uring.Completion, 5); len(seen) < submitters*each; {
		n, err := r.Wait(done)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range done[:n] {
			if c.Err != nil || c.N != 512 || seen[token(c)] {
				t.Fatalf("completion %+v, seen %v", c, seen[token(c)])
			}
			seen[token(c)] = true
		}
	}
	wg.Wait()
	if !bytes.Equal(b, content) {
		t.Error("wrong bytes")
	}
}

// A read of an empty pipe ends when bytes are written to it, after a read that was submitted later.
func TestCompletionsComeInAnyOrder(t *testing.T) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	fd, _ := file(t, page, 0)
	b, r := memory(t, 2*page), open(t, uring.Options{})
	ops := []uring.Op{{Code: uring.Read, FD: p[0], Buf: b[:8], Token: 1}, {Code: uring.Read, FD: fd, Buf: b[page:], Token: 2}}
	if n, err := r.Submit(ops...); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	one := make([]uring.Completion, 1)
	if _, err := r.Wait(one); err != nil || token(one[0]) != 2 || one[0].N != page {
		t.Errorf("first completion %+v, %v", one, err)
	}
	if _, err := unix.Write(p[1], []byte("8 bytes.")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Wait(one); err != nil || token(one[0]) != 1 || string(b[:8]) != "8 bytes." {
		t.Errorf("second completion %+v, %v", one, err)
	}
	_ = errors.Join(unix.Close(p[0]), unix.Close(p[1])) // pipe of the test
}

// Close returns only after the kernel has finished with the memory of running requests.
func TestCloseWaitsForWhatIsInFlight(t *testing.T) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	b, r := memory(t, page), open(t, uring.Options{})
	if n, err := r.Submit(uring.Op{Code: uring.Read, FD: p[0], Buf: b[:4]}, uring.Op{Code: uring.NOP}); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	closed := make(chan error, 1)
	go func() { closed <- r.Close() }()
	select {
	case err := <-closed:
		t.Fatalf("closed with a read in flight: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	if n, err := r.Submit(uring.Op{Code: uring.NOP}); n != 0 || !errors.Is(err, errdefs.ErrClosed) && err != nil {
		t.Errorf("submit while the ring is closing: %d, %v", n, err)
	}
	if _, err := unix.Write(p[1], []byte("last")); err != nil {
		t.Fatal(err)
	}
	if err := <-closed; err != nil || string(b[:4]) != "last" {
		t.Errorf("%v, memory %q", err, b[:4])
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := r.RegisterBuffers(b); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("register with a closed ring: %v", err)
	}
	_ = errors.Join(unix.Close(p[0]), unix.Close(p[1])) // pipe of the test
}

func TestCloseEndsAWaitForNothing(t *testing.T) {
	r := open(t, uring.Options{})
	waited := make(chan error, 1)
	go func() {
		_, err := r.Wait(make([]uring.Completion, 1))
		waited <- err
	}()
	time.Sleep(5 * time.Millisecond)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; !errors.Is(err, errdefs.ErrClosed) {
		t.Error(err)
	}
}

// A wait that started before any request ends with the first completion.
func TestWaitSeesWhatIsSubmittedLater(t *testing.T) {
	r := open(t, uring.Options{})
	waited := make(chan uring.Completion, 1)
	go func() {
		one := make([]uring.Completion, 1)
		if _, err := r.Wait(one); err != nil {
			t.Error(err)
		}
		waited <- one[0]
	}()
	time.Sleep(5 * time.Millisecond)
	if _, err := r.Submit(uring.Op{Code: uring.NOP, Token: 9}); err != nil {
		t.Fatal(err)
	}
	if c := <-waited; token(c) != 9 {
		t.Errorf("%+v", c)
	}
}
