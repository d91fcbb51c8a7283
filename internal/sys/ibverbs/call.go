package ibverbs

import (
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"
)

// maxArgs is the maximum number of arguments.
const maxArgs = 6

// frame is the memory for the arguments and results of one call. Frames are on the Go heap, where
// objects do not move, and are reused. Therefore calls do not allocate memory.
type frame struct {
	args [maxArgs]uintptr
	out  [2]uintptr
	// keep has the objects of pointer arguments. Storing a pointer here also makes the object
	// escape to the heap; the address of an object on a goroutine's stack could change during the
	// call.
	keep [2]unsafe.Pointer
}

// caller calls functions of the library.
type caller struct {
	frames        sync.Pool
	errnoLocation uintptr // address of the C function __errno_location: int *(void)
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

// pin returns p as an argument. It keeps the object of p alive and in place until put.
func (f *frame) pin(i int, p unsafe.Pointer) uintptr {
	f.keep[i] = p
	return uintptr(p)
}

// errno clears errno, calls fn and returns errno.
func (c *caller) errno(f *frame, fn uintptr, args ...uintptr) (uintptr, syscall.Errno) {
	// errno is specific to the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	location := (*int32)(pointer(f.call(c.errnoLocation)))
	*location = 0
	r := f.call(fn, args...)
	return r, syscall.Errno(*location)
}

// object calls a function that returns a pointer, or null with errno set.
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

// do calls a function like status whose arguments are all values.
func (c *caller) do(fn uintptr, args ...uintptr) syscall.Errno {
	f := c.get()
	defer c.put(f)
	return c.status(f, fn, args...)
}

// result converts an int result to an errno. Some providers return negative errnos.
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

// pointer converts an address that is not on the Go heap. The indirection avoids a warning of vet.
func pointer(p uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

// member returns a pointer to the member at offset off of the C structure at p.
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
