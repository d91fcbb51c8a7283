// Package hostmem gives host memory that the Go runtime does not own: whole pages of an anonymous private mapping. Memory
// that a device, a kernel or a system call may still touch after a Go function returned comes from here, never from the
// Go heap, whose collector may free or reuse it.
//
// Memory counts as leak.HostBytes until it is freed. All functions are safe for concurrent use.
package hostmem

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/mem"
)

// Alloc maps bytes of zeroed, page-aligned memory. Errors: ErrInvalid unless bytes is positive; ErrNoMemory, with the
// kernel's error, when the mapping is refused. Pages take up memory only once they are touched.
func Alloc(bytes int64) ([]byte, error) {
	if bytes <= 0 || bytes != int64(int(bytes)) {
		return nil, fmt.Errorf("map %d bytes of host memory: %w", bytes, errdefs.ErrInvalid)
	}
	b, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of host memory: %w: %w", bytes, errdefs.ErrNoMemory, err)
	}
	leak.Add(leak.HostBytes, bytes)
	return b, nil
}

// AllocLarge is Alloc with pages of 2 MiB where the kernel has them, for memory that all gets used. A disk is told of few long runs of it
// then, in place of each page.
func AllocLarge(bytes int64) ([]byte, error) {
	b, err := Alloc(bytes)
	if err == nil {
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // which is about speed alone
	}
	return b, err
}

// Free unmaps memory that Alloc returned: the same slice, not a part of it. ErrInvalid for any other slice, and for one
// already freed. Touching the memory afterwards crashes the process, which is what a use after free should do.
func Free(b []byte) error {
	err := unix.Munmap(b)
	switch {
	case err == nil:
		leak.Add(leak.HostBytes, -int64(len(b)))
		return nil
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("unmap %d bytes at %#x: not a mapping of Alloc: %w", len(b), Addr(b), errdefs.ErrInvalid)
	default:
		return fmt.Errorf("unmap %d bytes at %#x: %w", len(b), Addr(b), err)
	}
}

// Addr returns the address of b's first byte; zero for an empty slice without memory behind it.
func Addr(b []byte) mem.CPUAddr {
	return mem.CPUAddr(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}

// Region returns a region of kind mem.KindHost over b, which stays its caller's to free.
func Region(b []byte) (*mem.Region, error) {
	return mem.NewRegion(mem.RegionSpec{
		Kind: mem.KindHost, Device: mem.NoDevice, Len: int64(len(b)), CPU: Addr(b), Bytes: b,
	})
}

// View returns the n bytes at addr, which whoever named the address keeps mapped for as long as the view is used. It looks at nothing:
// where there is no memory, who touches the view faults (Guard).
func View(addr mem.CPUAddr, n int) []byte {
	p := uintptr(addr)
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n)
}

// Guard calls f. Where f touches memory that is not there, or not for that, Guard returns what faulted says of the address, in place of
// ending the process; f has then stopped midway, and has had its deferred calls.
func Guard(f func() error, faulted func(mem.CPUAddr) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		at, ok := r.(interface{ Addr() uintptr }) // as runtime/debug says of such faults
		if !ok {
			panic(r)
		}
		err = faulted(mem.CPUAddr(at.Addr()))
	}()
	return f()
}

// heapSpan is how near to each other two addresses are to be taken for parts of the same heap: the Go runtime reserves
// its arenas one after the other from a fixed hint, and the kernel places mappings elsewhere.
const heapSpan = 40

// OnGoHeap reports whether b most likely lies in the Go heap, so that it must not be given to a device. It is for
// checks that catch mistakes, not for decisions: the Go runtime promises nothing about its addresses.
func OnGoHeap(b []byte) bool {
	return len(b) > 0 && Addr(b)>>heapSpan == Addr(make([]byte, 1<<16))>>heapSpan
}

// LoadUint64 reads the 64-bit word at the start of b in one step, in the machine's byte order, ordered as sync/atomic is.
// b must be at least 8 bytes long and aligned to 8; anything else is a bug, and panics.
func LoadUint64(b []byte) uint64 { return atomic.LoadUint64(word(b)) }

// StoreUint64 writes the 64-bit word at the start of b in one step; b as for LoadUint64.
func StoreUint64(b []byte, v uint64) { atomic.StoreUint64(word(b), v) }

func word(b []byte) *uint64 {
	if len(b) < 8 || Addr(b)%8 != 0 {
		panic(fmt.Sprintf("hostmem: no word in %d bytes at %#x", len(b), Addr(b)))
	}
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(b)))
}

// Words returns the memory of s as words of 64 bits in the machine's order, or none where it is not aligned or not whole words.
// Elements must not hold pointers.
func Words[T any](s []T) []uint64 {
	p := unsafe.Pointer(unsafe.SliceData(s))
	bytes := uintptr(len(s)) * unsafe.Sizeof(*new(T))
	if (uintptr(p)|bytes)%8 != 0 {
		return nil
	}
	return unsafe.Slice((*uint64)(p), bytes/8)
}

// Bytes returns the memory of s, whose elements must not hold pointers.
func Bytes[T any](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(*new(T))))
}
