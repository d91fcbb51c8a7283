package cuda

import (
	"fmt"
	"os"
	"runtime"
	"sync"

	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/internal/limits"
	"github.com/kvlane/kvlane/internal/sys/cuda"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// AllocHost returns page-locked host memory. It maps pages, touches them from several threads and then registers them:
// the driver's own allocation touches them from one, which takes three times as long for gigabytes.
func (d *Device) AllocHost(bytes int64) (*mem.Region, error) {
	r, err := d.make(leak.PinnedBytes, bytes, func(a *allocation) (*mem.Region, error) {
		// Touching what does not fit would not fail: the kernel would end a process.
		if err := limits.Read(os.DirFS("/")).CheckMemory(bytes); err != nil {
			return nil, err
		}
		b, err := hostmem.Alloc(bytes)
		if err != nil {
			return nil, err
		}
		a.undo(func() error { return hostmem.Free(b) })
		touch(b)
		return d.pin(b, a)
	})
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes of pinned host memory: %w", bytes, err)
	}
	return r, nil
}

// RegisterHost page-locks memory of the caller's, which stays the caller's and mapped until Free.
func (d *Device) RegisterHost(b []byte) (*mem.Region, error) {
	r, err := d.make(leak.RegisteredBytes, int64(len(b)), func(a *allocation) (*mem.Region, error) { return d.pin(b, a) })
	if err != nil {
		return nil, fmt.Errorf("register %d bytes of host memory: %w", len(b), err)
	}
	return r, nil
}

// pin registers b for all contexts and asks for its device address.
func (d *Device) pin(b []byte, a *allocation) (*mem.Region, error) {
	cpu := hostmem.Addr(b)
	addr := uint64(cpu)
	if r := d.api.MemHostRegister(addr, uint64(len(b)), cuda.HostRegisterPortable|cuda.HostRegisterMapped); r != cuda.Success {
		return nil, d.fail(r, "cuMemHostRegister_v2", "address=%#x, bytes=%d, flags=portable|devicemap", addr, len(b))
	}
	a.undo(func() error {
		return d.check(d.api.MemHostUnregister(addr), "cuMemHostUnregister", "address=%#x", addr)
	})
	// The one place where a CPU address leads to a device address: the driver answers it, also where the two are equal.
	p, r := d.api.MemHostGetDevicePointer(addr)
	if r != cuda.Success {
		return nil, d.fail(r, "cuMemHostGetDevicePointer_v2", "address=%#x", addr)
	}
	return mem.NewRegion(mem.RegionSpec{
		Kind: mem.KindHostPinned, Device: d.info.Index, Len: int64(len(b)), CPU: cpu, Dev: mem.DevAddr(p), Bytes: b[:len(b):len(b)],
	})
}

const (
	pageBytes   = 4 << 10
	touchPart   = 64 << 20 // bytes that are worth a goroutine
	touchAtOnce = 16       // beyond, the kernel's locks are the limit
)

// touch makes the kernel back b, which is zero, with pages.
func touch(b []byte) {
	n := min(len(b)/touchPart+1, runtime.GOMAXPROCS(0), touchAtOnce)
	part := (len(b)/n + pageBytes) &^ (pageBytes - 1)
	var wg sync.WaitGroup
	for from := 0; from < len(b); from += part {
		wg.Go(func() {
			for i := from; i < min(from+part, len(b)); i += pageBytes {
				b[i] = 0
			}
		})
	}
	wg.Wait()
}
