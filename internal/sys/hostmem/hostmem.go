// Package hostmem allocates host memory outside the Go heap: whole pages of an anonymous private
// mapping. Use it for memory that a device, a kernel or a system call may access after a Go
// function has returned. The garbage collector could free or reuse heap memory meanwhile.
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

// Alloc maps zeroed, page-aligned memory. It returns ErrInvalid if bytes is not positive, and
// ErrNoMemory with the kernel's error if the mapping fails. Physical memory is used after the first
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

// AllocLarge is like Alloc, with pages of 2 MiB if the kernel supports them. Use it for memory that
// is used completely. Disk requests then consist of a few large segments.
func AllocLarge(bytes int64) ([]byte, error) {
	b, err := Alloc(bytes)
	if err == nil {
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // an optimization, so the error is ignored
	}
	return b, err
}

// Free unmaps memory that Alloc returned. b must be the whole slice. It returns ErrInvalid for
// other slices and for memory that is already freed. Later accesses crash the process.
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

// Addr returns the address of b, or zero for an empty slice.
func Addr(b []byte) mem.CPUAddr {
	return mem.CPUAddr(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}

// Region returns a region of kind mem.KindHost for b. The caller frees b.
func Region(b []byte) (*mem.Region, error) {
	return mem.NewRegion(mem.RegionSpec{
		Kind: mem.KindHost, Device: mem.NoDevice, Len: int64(len(b)), CPU: Addr(b), Bytes: b,
	})
}

// AllocRegion is Alloc with a region of kind mem.KindHost. FreeRegion frees it.
func AllocRegion(bytes int64) (*mem.Region, error) {
	b, err := Alloc(bytes)
	if err != nil {
		return nil, err
	}
	r, err := Region(b)
	if err != nil {
		return nil, errors.Join(err, Free(b))
	}
	return r, nil
}

// FreeRegion frees the memory of AllocRegion.
func FreeRegion(r *mem.Region) error { return Free(r.Bytes()) }

// View returns the n bytes at addr as a slice. The memory must stay mapped while the slice is used.
// View does not check the address; accesses to unmapped memory fault (see Guard).
func View(addr mem.CPUAddr, n int) []byte {
	p := uintptr(addr)
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n)
}

// Guard calls f. If an access in f faults, Guard returns faulted(address) instead of ending the
// process. f is interrupted then, and its deferred functions have run.
func Guard(f func() error, faulted func(mem.CPUAddr) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		// runtime/debug documents this method for such faults
		at, ok := r.(interface{ Addr() uintptr })
		if !ok {
			panic(r)
		}
		err = faulted(mem.CPUAddr(at.Addr()))
	}()
	return f()
}

// heapSpan is log2 of the size of an aligned address range that is assumed to contain the whole Go
// heap. The Go runtime reserves its arenas from a fixed address on, and the kernel places mappings
// elsewhere.
const heapSpan = 40

// OnGoHeap reports whether b is probably on the Go heap. Such memory must not be given to a device.
// It is a check for bugs only, because the Go runtime guarantees nothing about addresses.
func OnGoHeap(b []byte) bool {
	return len(b) > 0 && Addr(b)>>heapSpan == Addr(make([]byte, 1<<16))>>heapSpan
}

// LoadUint64 atomically reads the 64-bit word at the start of b in native byte order, with the
// memory ordering of sync/atomic. It panics if b has fewer than 8 bytes or is not aligned to 8.
func LoadUint64(b []byte) uint64 { return atomic.LoadUint64(word(b)) }

// StoreUint64 atomically writes the 64-bit word at the start of b. The requirements are those of
// LoadUint64.
func StoreUint64(b []byte, v uint64) { atomic.StoreUint64(word(b), v) }

func word(b []byte) *uint64 {
	if len(b) < 8 || Addr(b)%8 != 0 {
		panic(fmt.Sprintf("hostmem: no aligned word in %d bytes at %#x", len(b), Addr(b)))
	}
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(b)))
}

// Words returns the memory of s as 64-bit words in native byte order. It returns nil if the memory
// is not aligned or not a whole number of words. Elements must not contain pointers.
func Words[T any](s []T) []uint64 {
	p := unsafe.Pointer(unsafe.SliceData(s))
	bytes := uintptr(len(s)) * unsafe.Sizeof(*new(T))
	if (uintptr(p)|bytes)%8 != 0 {
		return nil
	}
	return unsafe.Slice((*uint64)(p), bytes/8)
}

// Bytes returns the memory of s. Elements must not contain pointers.
func Bytes[T any](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(*new(T))))
}
