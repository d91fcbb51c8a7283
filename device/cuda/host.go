package cuda

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/internal/limits"
	"github.com/kvlane/kvlane/internal/sys/cuda"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// maxRegistration is the maximum length of a registration, in bytes. Some drivers refuse a
// registration of 512 GiB.
const maxRegistration = 64 << 30

// AllocHost returns page-locked host memory on the GPU's NUMA node, if that node has enough. It
// maps pages, touches them from several threads and then registers them. The driver's own
// allocation touches them from one thread, which takes three times as long for gigabytes.
func (d *Device) AllocHost(bytes int64) (*mem.Region, error) {
	r, err := d.allocHost(bytes, pageBytes)
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes of pinned host memory: %w", bytes, err)
	}
	return r, nil
}

// AllocSlots implements device.SlotAllocator.
func (d *Device) AllocSlots(n, stride int64) (*mem.Region, error) {
	if n <= 0 || stride <= 0 || n > math.MaxInt64/stride {
		return nil, fmt.Errorf("allocate %d slots of %d bytes: %w", n, stride, errdefs.ErrInvalid)
	}
	r, err := d.allocHost(n*stride, stride)
	if err != nil {
		return nil, fmt.Errorf("allocate %d slots of %d bytes of pinned host memory: %w", n, stride, err)
	}
	return r, nil
}

func (d *Device) allocHost(bytes, stride int64) (*mem.Region, error) {
	return d.make(leak.PinnedBytes, bytes, func(a *allocation) (*mem.Region, error) {
		// Touching too much memory does not return an error: the kernel kills a process.
		if err := limits.Read(os.DirFS("/")).CheckMemory(bytes); err != nil {
			return nil, err
		}
		b, err := hostmem.Alloc(bytes)
		if err != nil {
			return nil, err
		}
		a.undo(func() error { return hostmem.Free(b) })
		d.place(b)
		touch(b)
		return d.pin(b, stride, a)
	})
}

// place makes the kernel back b, which is untouched, with pages of the GPU's NUMA node. If that is
// not possible, copies may be slower, and place only adds a note.
func (d *Device) place(b []byte) {
	node := d.info.NUMANode
	if node < 0 {
		return
	}
	if err := d.prefer(b, node); err != nil {
		d.note(fmt.Sprintf("pinned memory is not placed on NUMA node %d of device %d: %v", node, d.info.Index, err))
	}
}

// note adds a note, once.
func (d *Device) note(text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Contains(d.notes, text) {
		d.notes = append(d.notes, text)
	}
}

// Notes implements device.Noter.
func (d *Device) Notes() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.notes)
}

// RegisterHost page-locks the caller's memory. The caller keeps it mapped until Free.
func (d *Device) RegisterHost(b []byte) (*mem.Region, error) {
	r, err := d.make(leak.RegisteredBytes, int64(len(b)), func(a *allocation) (*mem.Region, error) { return d.pin(b, pageBytes, a) })
	if err != nil {
		return nil, fmt.Errorf("register %d bytes of host memory: %w", len(b), err)
	}
	return r, nil
}

// pin registers b for all contexts and returns its device address. A long b needs several
// registrations of whole strides. A region has one device address, so if the registrations'
// addresses are not contiguous, pin registers b in one call.
func (d *Device) pin(b []byte, stride int64, a *allocation) (*mem.Region, error) {
	each := registrationBytes(b, stride, d.maxRegistration)
	before := len(a.steps)
	dev, contiguous, err := d.register(b, each, a)
	if err == nil && !contiguous {
		if err = a.unwind(before); err != nil {
			return nil, err
		}
		each = 0
		if dev, _, err = d.register(b, each, a); err != nil {
			err = fmt.Errorf("at once, as the driver gives registrations of %d bytes addresses that are not contiguous: %w", d.maxRegistration, err)
		}
	}
	if err != nil {
		return nil, err
	}
	return mem.NewRegion(mem.RegionSpec{
		Kind: mem.KindHostPinned, Device: d.info.Index, Len: int64(len(b)), CPU: hostmem.Addr(b), Dev: dev, Bytes: b[:len(b):len(b)], RegistrationBytes: each,
	})
}

// registrationBytes returns the length of each registration of b, or zero if one is enough. The
// length is the largest number of whole strides that fit in most bytes. A stride that is not a
// multiple of the page size is split, because no page may be in two registrations.
func registrationBytes(b []byte, stride, most int64) int64 {
	switch {
	case int64(len(b)) <= most || hostmem.Addr(b)%pageBytes != 0:
		return 0
	case stride%pageBytes != 0:
		stride = pageBytes
	}
	if each := max(1, most/stride) * stride; each < int64(len(b)) {
		return each
	}
	return 0
}

// register registers b in pieces of each bytes, or in one call if each is zero. It returns the
// device address of the first byte, and reports whether the addresses of the registrations are
// contiguous.
func (d *Device) register(b []byte, each int64, a *allocation) (first mem.DevAddr, contiguous bool, err error) {
	if each == 0 {
		each = max(1, int64(len(b)))
	}
	contiguous = true
	for off := int64(0); off < int64(len(b)); off += each {
		part := b[off:min(off+each, int64(len(b)))]
		p, err := d.registerPart(part, a)
		if err != nil {
			return 0, false, err
		}
		if off == 0 {
			first = p
		}
		contiguous = contiguous && p == first+mem.DevAddr(off)
	}
	return first, contiguous, nil
}

func (d *Device) registerPart(b []byte, a *allocation) (mem.DevAddr, error) {
	addr := uint64(hostmem.Addr(b))
	if r := d.api.MemHostRegister(addr, uint64(len(b)), cuda.HostRegisterPortable|cuda.HostRegisterMapped); r != cuda.Success {
		return 0, d.fail(r, "cuMemHostRegister_v2", "address=%#x, bytes=%d, flags=portable|devicemap", addr, len(b))
	}
	a.undo(func() error {
		return d.check(d.api.MemHostUnregister(addr), "cuMemHostUnregister", "address=%#x", addr)
	})
	// Only here a device address is obtained for a CPU address. The driver returns it, even if the
	// two are equal.
	p, r := d.api.MemHostGetDevicePointer(addr)
	if r != cuda.Success {
		return 0, d.fail(r, "cuMemHostGetDevicePointer_v2", "address=%#x", addr)
	}
	return mem.DevAddr(p), nil
}

const (
	pageBytes   = 4 << 10
	touchPart   = 64 << 20 // bytes per goroutine
	touchAtOnce = 16       // more goroutines would only wait for the kernel's locks
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
