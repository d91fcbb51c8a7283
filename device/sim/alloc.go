package sim

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// Alloc returns device memory filled with PoisonFresh. Shareable memory is backed by a file, and
// its only handle type is memfd.
func (d *Device) Alloc(bytes int64, o device.AllocOptions) (*mem.Region, error) {
	const call = "simMemAlloc"
	var r *mem.Region
	var err error
	if o.Shareable && o.Handle != 0 && o.Handle != device.HandleMemFD {
		args := fmt.Sprintf("bytes=%d, handle=%s", bytes, o.Handle)
		err = native(call, args, 801, "NOT_SUPPORTED", "simulated memory has handles of type memfd only", errdefs.ErrNotSupported)
	} else {
		r, err = d.make(OpAlloc, call, mem.KindDevice, bytes, nil, o.Shareable)
	}
	if err != nil {
		return nil, fmt.Errorf("allocate device memory: %w", err)
	}
	return r, nil
}

// AllocHost returns zeroed page-locked memory.
func (d *Device) AllocHost(bytes int64) (*mem.Region, error) {
	r, err := d.make(OpAllocHost, "simMemAllocHost", mem.KindHostPinned, bytes, nil, false)
	if err != nil {
		return nil, fmt.Errorf("allocate pinned memory: %w", err)
	}
	return r, nil
}

// RegisterHost assigns a device address to b. It returns ErrInvalid for Go heap memory, and
// ErrExists for memory that overlaps an earlier registration.
func (d *Device) RegisterHost(b []byte) (*mem.Region, error) {
	const call = "simMemHostRegister"
	args := fmt.Sprintf("address=%#x, bytes=%d", hostmem.Addr(b), len(b))
	if hostmem.OnGoHeap(b) {
		return nil, fmt.Errorf("register host memory: %w", errInvalidValue(call, args, "this is Go heap memory, which the garbage collector may reuse"))
	}
	r, err := d.make(OpRegister, call, mem.KindHostPinned, int64(len(b)), b, false)
	if err != nil {
		return nil, fmt.Errorf("register host memory: %w", err)
	}
	return r, nil
}

// make allocates or registers memory and returns its region. given is the memory to register, or
// nil. If shared is set, a file backs the memory.
func (d *Device) make(op, call string, kind mem.Kind, bytes int64, given []byte, shared bool) (*mem.Region, error) {
	args := fmt.Sprintf("bytes=%d", bytes)
	if f, hit := d.o.Faults.Hit(op); hit {
		return nil, errInjected(call, &f)
	}
	if bytes <= 0 {
		return nil, errInvalidValue(call, args, "the length must be positive")
	}
	if err := d.standStill(call); err != nil {
		return nil, err
	}
	if err := d.charge(call, args, kind, bytes); err != nil {
		return nil, err
	}
	sp := &span{len: bytes, kind: kind, owned: given == nil, bytes: given, fd: -1}
	if sp.owned {
		if err := sp.back(shared); err != nil {
			d.refund(kind, bytes)
			return nil, fmt.Errorf("%w: %w", errOutOfMemory(call, args, "the host is out of memory"), err)
		}
	}
	spec := mem.RegionSpec{Kind: kind, Device: d.o.Index, Len: bytes}
	if kind == mem.KindDevice {
		fill(sp.bytes, PoisonFresh)
	} else {
		spec.Bytes, spec.CPU = sp.bytes, hostmem.Addr(sp.bytes)
	}
	if err := d.addSpan(sp, spec, call, args); err != nil {
		d.refund(kind, bytes)
		if sp.owned {
			return nil, errors.Join(err, sp.unshare(), hostmem.Free(sp.bytes))
		}
		return nil, err
	}
	leak.Add(sp.counter(), bytes)
	return sp.region, nil
}

// back allocates the span's memory.
func (sp *span) back(shared bool) (err error) {
	if shared {
		sp.bytes, sp.fd, err = hostmem.AllocShared(sp.len)
		return err
	}
	sp.bytes, err = hostmem.Alloc(sp.len)
	return err
}

// unshare closes the file that backs the span's memory, if any.
func (sp *span) unshare() error {
	if sp.fd < 0 {
		return nil
	}
	fd := sp.fd
	sp.fd = -1
	return unix.Close(fd)
}

// addSpan assigns an address and a region to sp and adds it to the address space.
func (d *Device) addSpan(sp *span, spec mem.RegionSpec, call, args string) error {
	if d.o.HostAddresses && sp.kind == mem.KindDevice {
		// Only here the simulated driver uses a CPU address as a device address: that of the memory
		// that backs the span.
		sp.base = mem.DevAddr(hostmem.Addr(sp.bytes))
	} else {
		sp.base = d.space.reserve(sp.len, spec.CPU)
	}
	spec.Dev = sp.base
	r, err := mem.NewRegion(spec)
	if err != nil {
		return err
	}
	sp.region = r
	if other := d.space.add(sp); other != nil {
		text := fmt.Sprintf("the %d bytes at %#x are page-locked already", other.len, uint64(other.region.CPU()))
		return native(call, args, 712, "HOST_MEMORY_ALREADY_REGISTERED", text, errdefs.ErrExists)
	}
	return nil
}

// charge subtracts bytes from the free memory of that kind.
func (d *Device) charge(call, args string, kind mem.Kind, bytes int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errClosed(call)
	}
	if kind == mem.KindDevice {
		if bytes > d.o.MemoryBytes-d.memBytes {
			return errOutOfMemory(call, args, fmt.Sprintf("%d of %d bytes of device memory are in use", d.memBytes, d.o.MemoryBytes))
		}
		d.memBytes += bytes
		return nil
	}
	if limit := d.o.HostRegisterMaxBytes; limit > 0 && bytes > limit {
		return errOutOfMemory(call, args, fmt.Sprintf("one registration holds at most %d bytes", limit))
	}
	if limit := d.o.HostRegisterLimitBytes; limit > 0 && bytes > limit-d.lockBytes {
		return errOutOfMemory(call, args, fmt.Sprintf("%d of %d bytes of page-locked memory are in use", d.lockBytes, limit))
	}
	d.lockBytes += bytes
	return nil
}

func (d *Device) refund(kind mem.Kind, bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if kind == mem.KindDevice {
		d.memBytes -= bytes
	} else {
		d.lockBytes -= bytes
	}
}

func (sp *span) counter() leak.Kind {
	switch {
	case sp.imported:
		return leak.ImportedBytes
	case sp.kind == mem.KindDevice:
		return leak.DeviceBytes
	case sp.owned:
		return leak.PinnedBytes
	default:
		return leak.RegisteredBytes
	}
}
