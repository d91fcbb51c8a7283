// Package hostmem allocates host memory outside the Go heap: whole pages of an anonymous private
// mapping. Memory that a device, a kernel or a system call may access after a Go function returned
// comes from here, because the garbage collector may free or reuse memory of the heap.
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

// Alloc maps zeroed, page-aligned memory. It returns ErrInvalid unless bytes is positive, and
// ErrNoMemory with the kernel's error if the mapping fails. Pages use memory only after the first
// access.
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

// AllocLarge is Alloc with pages of 2 MiB if the kernel has them, for memory that will all be used.
// A disk request then has a few long pieces instead of single pages.
func AllocLarge(bytes int64) ([]byte, error) {
	b, err := Alloc(bytes)
	if err == nil {
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // affects only the speed
	}
	return b, err
}

// Free unmaps memory of Alloc: the same slice, not a part of it. It returns ErrInvalid for any
// other slice, and for a freed one. A later access crashes the process.
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

// Addr returns the address of b's first byte, or zero for an empty slice.
func Addr(b []byte) mem.CPUAddr {
	return mem.CPUAddr(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}

// Region returns a region of kind mem.KindHost over b. The caller frees b.
func Region(b []byte) (*mem.Region, error) {
	return mem.NewRegion(mem.RegionSpec{
		Kind: mem.KindHost, Device: mem.NoDevice, Len: int64(len(b)), CPU: Addr(b), Bytes: b,
	})
}

// View returns the n bytes at addr. The caller must keep them mapped while the view is used. View
// does not check the address; an access to unmapped memory faults (see Guard).
func View(addr mem.CPUAddr, n int) []byte {
	p := uintptr(addr)
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n)
}

// Guard calls f. If f faults, Guard returns the result of faulted for the address instead of ending
// the process. f was then interrupted, and its deferred calls have run.
func Guard(f func() error, faulted func(mem.CPUAddr) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		at, ok := r.(interface{ Addr() uintptr }) // documented in runtime/debug for such faults
		if !ok {
			panic(r)
		}
		err = faulted(mem.CPUAddr(at.Addr()))
	}()
	return f()
}

// heapSpan is log2 of the distance within which two addresses are assumed to be of the same heap.
// The Go runtime reserves its arenas one after the other from a fixed hint, and the kernel places
// mappings elsewhere.
const heapSpan = 40

// OnGoHeap reports whether b is probably in the Go heap, and must not be given to a device. It is
// for checks that find mistakes, because the Go runtime makes no promise about its addresses.
func OnGoHeap(b []byte) bool {
	return len(b) > 0 && Addr(b)>>heapSpan == Addr(make([]byte, 1<<16))>>heapSpan
}

// LoadUint64 reads the 64-bit word at the start of b atomically, in the machine's byte order, with
// the ordering of sync/atomic. b must have at least 8 bytes and be aligned to 8; otherwise it
// panics.
func LoadUint64(b []byte) uint64 { return atomic.LoadUint64(word(b)) }

// StoreUint64 writes the 64-bit word at the start of b atomically. b is as for LoadUint64.
func StoreUint64(b []byte, v uint64) { atomic.StoreUint64(word(b), v) }

func word(b []byte) *uint64 {
	if len(b) < 8 || Addr(b)%8 != 0 {
		panic(fmt.Sprintf("hostmem: no aligned word in %d bytes at %#x", len(b), Addr(b)))
	}
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(b)))
}

// Words returns the memory of s as 64-bit words in the machine's byte order, or nil if it is not
// aligned or not whole words. Elements must not hold pointers.
func Words[T any](s []T) []uint64 {
	p := unsafe.Pointer(unsafe.SliceData(s))
	bytes := uintptr(len(s)) * unsafe.Sizeof(*new(T))
	if (uintptr(p)|bytes)%8 != 0 {
		return nil
	}
	return unsafe.Slice((*uint64)(p), bytes/8)
}

// Bytes returns the memory of s. Elements must not hold pointers.
func Bytes[T any](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(*new(T))))
}
