package ibverbs

import (
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"
)

// maxArgs is the largest number of arguments.
const maxArgs = 6

// frame is the memory of one call: its arguments and results. Frames are on the Go heap, whose
// objects do not move, and reused. A call allocates nothing, unlike one with a literal argument
// list.
type frame struct {
	args [maxArgs]uintptr
	out  [2]uintptr
	// keep holds the objects of pointer arguments. Storing a pointer here also forces the object
	// onto the heap; an address on a goroutine's stack may change before the library reads it.
	keep [2]unsafe.Pointer
}

// caller calls functions of the library.
type caller struct {
	frames        sync.Pool
	errnoLocation uintptr // __errno_location of the C library: int *(void)
}

func (c *caller) get() *frame {
	f, ok := c.frames.Get().(*frame)
	if !ok {
		f = new(frame)
	}
	f.out = [2]uintptr{}
	return f
}

func (c *caller) put(f *frame) {
	f.keep = [2]unsafe.Pointer{}
	c.frames.Put(f)
}

// call calls fn.
func (f *frame) call(fn uintptr, args ...uintptr) uintptr {
	n := copy(f.args[:], args)
	r, _, _ := purego.SyscallN(fn, f.args[:n]...)
	runtime.KeepAlive(f)
	return r
}

// outPtr returns the address of out[i].
func (f *frame) outPtr(i int) uintptr { return uintptr(unsafe.Pointer(&f.out[i])) }

// pin returns p as an argument, and keeps its object alive and in place until put.
func (f *frame) pin(i int, p unsafe.Pointer) uintptr {
	f.keep[i] = p
	return uintptr(p)
}

// errno clears errno, calls fn and returns errno.
func (c *caller) errno(f *frame, fn uintptr, args ...uintptr) (uintptr, syscall.Errno) {
	// errno belongs to the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	location := (*int32)(pointer(f.call(c.errnoLocation)))
	*location = 0
	r := f.call(fn, args...)
	return r, syscall.Errno(*location)
}

// object calls a function that returns a pointer, or null and an errno.
func (c *caller) object(f *frame, fn uintptr, args ...uintptr) (uintptr, syscall.Errno) {
	r, errno := c.errno(f, fn, args...)
	switch {
	case r != 0:
		return r, 0
	case errno == 0:
		return 0, syscall.EIO
	}
	return 0, errno
}

// status calls a function that returns zero, an errno, or -1 with errno set.
func (c *caller) status(f *frame, fn uintptr, args ...uintptr) syscall.Errno {
	r, errno := c.errno(f, fn, args...)
	if int32(uint32(r)) == -1 && errno != 0 {
		return errno
	}
	return result(r)
}

// do is status for a function with only value arguments.
func (c *caller) do(fn uintptr, args ...uintptr) syscall.Errno {
	f := c.get()
	defer c.put(f)
	return c.status(f, fn, args...)
}

// result returns the errno of an int result. Some providers return it as a negative number.
func result(r uintptr) syscall.Errno {
	switch v := int32(uint32(r)); {
	case v == -1:
		return syscall.EIO
	case v < 0:
		return syscall.Errno(-v)
	default:
		return syscall.Errno(v)
	}
}

// pointer converts an address outside of the Go heap. The indirection lets vet accept it.
func pointer(p uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

// member returns a pointer to the member at offset off of the library's structure at p.
func member[T any](p uintptr, off uintptr) *T { return (*T)(unsafe.Add(pointer(p), off)) }

// goString copies the C string at p.
func goString(p uintptr) string {
	if p == 0 {
		return ""
	}
	base, n := pointer(p), 0
	for *(*byte)(unsafe.Add(base, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(base), n))
}
