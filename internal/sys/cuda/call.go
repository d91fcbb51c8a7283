package cuda

import (
	"runtime"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// maxArgs is the maximum number of arguments. cuIpcOpenMemHandle has 14 words if its structure is
// on the stack.
const maxArgs = 14

// frame is the memory for the arguments and results of one call. Frames are on the Go heap, where
// objects do not move, and are reused. Therefore calls do not allocate memory.
type frame struct {
	args [maxArgs]uintptr
	out  [2]uint64
	// keep has the objects of pointer arguments. Storing a pointer here also makes the object
	// escape to the heap; the address of an object on a goroutine's stack could change during the
	// call.
	keep [4]unsafe.Pointer
}

// caller calls functions of the driver.
type caller struct {
	frames sync.Pool
}

func newCaller() *caller { return new(caller) }

func (c *caller) get() *frame {
	f, ok := c.frames.Get().(*frame)
	if !ok {
		f = new(frame)
	}
	f.out = [2]uint64{}
	return f
}

func (c *caller) put(f *frame) {
	f.keep = [4]unsafe.Pointer{}
	c.frames.Put(f)
}

// call calls fn. It ignores the upper half of the result register, which is undefined because a
// CUresult is an int.
func (f *frame) call(fn uintptr, args ...uintptr) Result {
	n := copy(f.args[:], args)
	r, _, _ := purego.SyscallN(fn, f.args[:n]...)
	runtime.KeepAlive(f)
	return Result(int32(uint32(r)))
}

// outPtr returns the address of out[i].
func (f *frame) outPtr(i int) uintptr { return uintptr(unsafe.Pointer(&f.out[i])) }

// pin returns p as an argument. It keeps the object of p alive and in place until put.
func (f *frame) pin(i int, p unsafe.Pointer) uintptr {
	f.keep[i] = p
	return uintptr(p)
}

// do calls a function whose arguments are all values.
func (c *caller) do(fn uintptr, args ...uintptr) Result {
	f := c.get()
	r := f.call(fn, args...)
	c.put(f)
	return r
}

// out calls a function whose first parameter is a pointer to a result of at most 8 bytes. The other
// arguments are values.
func (c *caller) out(fn uintptr, args ...uintptr) (uint64, Result) {
	f := c.get()
	f.args[0] = f.outPtr(0)
	n := copy(f.args[1:], args)
	r, _, _ := purego.SyscallN(fn, f.args[:n+1]...)
	v := f.out[0]
	c.put(f)
	return v, Result(int32(uint32(r)))
}

// text calls a function that writes a string to a buffer: (char *buf, int len, CUdevice dev).
func (c *caller) text(fn uintptr, dev DeviceID) (string, Result) {
	f := c.get()
	defer c.put(f)
	buf := make([]byte, 256)
	r := f.call(fn, f.pin(0, unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)), uintptr(dev))
	for i, b := range buf {
		if b == 0 {
			return string(buf[:i]), r
		}
	}
	return string(buf), r
}

// constant calls a function that returns a constant string: (CUresult, const char **).
func (c *caller) constant(fn uintptr, code Result) string {
	f := c.get()
	defer c.put(f)
	if r := f.call(fn, uintptr(code), f.outPtr(0)); r != Success {
		return ""
	}
	return goString(uintptr(f.out[0]))
}

// cString returns s with a terminating zero.
func cString(s string) unsafe.Pointer {
	return unsafe.Pointer(unsafe.SliceData(append([]byte(s), 0)))
}

// goString copies the C string at p. p must not be on the Go heap.
func goString(p uintptr) string {
	if p == 0 {
		return ""
	}
	// The indirection avoids a warning of vet. The address does not belong to a Go object.
	base := *(*unsafe.Pointer)(unsafe.Pointer(&p))
	n := 0
	for *(*byte)(unsafe.Add(base, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(base), n))
}
