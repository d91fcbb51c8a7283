package cufile

import (
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"
)

// maxArgs is the maximum number of arguments. cuFileReadAsync has 7.
const maxArgs = 7

// frame is the memory for the arguments and results of one call. Frames are on the Go heap, where
// objects do not move, and are reused. Therefore calls do not allocate memory.
type frame struct {
	args  [maxArgs]uintptr
	out   uint64
	descr descriptor
	props Properties
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
	f.out = 0
	return f
}

func (c *caller) put(f *frame) { c.frames.Put(f) }

// call calls fn.
func (f *frame) call(fn uintptr, args ...uintptr) uintptr {
	n := copy(f.args[:], args)
	r, _, _ := purego.SyscallN(fn, f.args[:n]...)
	runtime.KeepAlive(f)
	return r
}

// result calls a function that returns a CUfileError_t. On both architectures, a structure of two
// ints is returned in one 64-bit register, with the first int in the lower half.
func (f *frame) result(fn uintptr, args ...uintptr) Result {
	r := uint64(f.call(fn, args...))
	return Result{Status: Status(int32(uint32(r))), CUDA: int32(uint32(r >> 32))}
}

// do calls a function that returns a CUfileError_t and whose arguments are all values.
func (c *caller) do(fn uintptr, args ...uintptr) Result {
	f := c.get()
	defer c.put(f)
	return f.result(fn, args...)
}

// transfer calls a function that returns a ssize_t, or -1 with errno set.
func (c *caller) transfer(fn uintptr, args ...uintptr) (int64, syscall.Errno) {
	f := c.get()
	defer c.put(f)
	// errno is specific to the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p := f.call(c.errnoLocation)
	errno := *(**int32)(unsafe.Pointer(&p)) // the indirection lets vet accept the address
	*errno = 0
	n := int64(f.call(fn, args...))
	if n != -1 {
		return n, 0
	}
	return n, syscall.Errno(*errno)
}

// outPtr returns the address of the result.
func (f *frame) outPtr() uintptr { return uintptr(unsafe.Pointer(&f.out)) }
