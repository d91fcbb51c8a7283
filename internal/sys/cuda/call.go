package cuda

import (
	"runtime"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// maxArgs is the most arguments of a function here: cuIpcOpenMemHandle has 14 words where its structure is on the stack.
const maxArgs = 14

// frame is the memory of one call: its arguments and what it writes back. Frames are on the Go heap, whose objects do not
// move, and reused: a call allocates nothing, where a literal argument list would.
type frame struct {
	args [maxArgs]uintptr
	out  [2]uint64
	// keep holds what arguments point at. Storing a pointer here is also what makes the compiler put the object on the
	// heap: an address on a goroutine's stack may change before the driver reads it.
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

// call calls fn. A CUresult is an int: the register's upper half is undefined.
func (f *frame) call(fn uintptr, args ...uintptr) Result {
	n := copy(f.args[:], args)
	r, _, _ := purego.SyscallN(fn, f.args[:n]...)
	runtime.KeepAlive(f)
	return Result(int32(uint32(r)))
}

// outPtr returns the address of out[i].
func (f *frame) outPtr(i int) uintptr { return uintptr(unsafe.Pointer(&f.out[i])) }

// pin returns p as an argument, and keeps what it points at alive and in place until put.
func (f *frame) pin(i int, p unsafe.Pointer) uintptr {
	f.keep[i] = p
	return uintptr(p)
}

// do calls a function that takes values only.
func (c *caller) do(fn uintptr, args ...uintptr) Result {
	f := c.get()
	r := f.call(fn, args...)
	c.put(f)
	return r
}

// out calls a function whose first parameter points at what it returns, of at most 8 bytes. The rest are values.
func (c *caller) out(fn uintptr, args ...uintptr) (uint64, Result) {
	f := c.get()
	f.args[0] = f.outPtr(0)
	n := copy(f.args[1:], args)
	r, _, _ := purego.SyscallN(fn, f.args[:n+1]...)
	v := f.out[0]
	c.put(f)
	return v, Result(int32(uint32(r)))
}

// text calls a function that fills a buffer: (char *buf, int len, CUdevice dev).
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

// constant calls a function that answers with a string of its own: (CUresult, const char **).
func (c *caller) constant(fn uintptr, code Result) string {
	f := c.get()
	defer c.put(f)
	if r := f.call(fn, uintptr(code), f.outPtr(0)); r != Success {
		return ""
	}
	return goString(uintptr(f.out[0]))
}

// cString returns s with the terminating zero that C wants.
func cString(s string) unsafe.Pointer {
	return unsafe.Pointer(unsafe.SliceData(append([]byte(s), 0)))
}

// goString copies the C string at p, which is not Go's memory.
func goString(p uintptr) string {
	if p == 0 {
		return ""
	}
	// The detour says to vet what is so: the address is not of an object that Go could move.
	base := *(*unsafe.Pointer)(unsafe.Pointer(&p))
	n := 0
	for *(*byte)(unsafe.Add(base, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(base), n))
}
