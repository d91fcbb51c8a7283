package cuda

import (
	"errors"
	"fmt"
	"math"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/internal/sys/cuda"
	"github.com/kvlane/kvlane/mem"
)

// allocation is memory, complete or being created, with the steps that undo its creation. The same
// steps are used if an allocation fails halfway and to free it later.
type allocation struct {
	kind  leak.Kind
	bytes int64
	steps []func() error
	// for device memory: its address, and its properties for export
	at   cuda.DevicePtr
	size uint64
	// handle is set for memory of cuMemCreate. Other devices need access to each such allocation
	// separately.
	handle   cuda.MemHandle
	by       device.HandleType
	imported bool // the memory belongs to another process, and only this device has access
}

// holds reports whether r is inside a.
func (a *allocation) holds(r *mem.Region) bool {
	at := uint64(r.Dev())
	return a.size > 0 && at >= uint64(a.at) && uint64(r.Len()) <= a.size && at-uint64(a.at) <= a.size-uint64(r.Len())
}

// piecemeal reports whether devices need access to this allocation separately from the context's
// other memory.
func (a *allocation) piecemeal() bool { return a.handle != 0 && !a.imported }

// undo adds a step. The last added step runs first.
func (a *allocation) undo(step func() error) { a.steps = append(a.steps, step) }

// free runs all steps.
func (a *allocation) free() error { return a.unwind(0) }

// unwind runs the steps that were added after the first n. It stops at a step that fails, because
// earlier steps depend on it. A later call continues from there.
func (a *allocation) unwind(n int) error {
	for len(a.steps) > n {
		last := len(a.steps) - 1
		if err := a.steps[last](); err != nil {
			return err
		}
		a.steps = a.steps[:last]
	}
	return nil
}

// make calls acquire with the context current, and records the region that acquire returns. If
// acquire fails, make undoes its steps.
func (d *Device) make(kind leak.Kind, bytes int64, acquire func(a *allocation) (*mem.Region, error)) (*mem.Region, error) {
	if bytes <= 0 {
		return nil, fmt.Errorf("%d bytes: %w", bytes, errdefs.ErrInvalid)
	}
	if err := d.begin(); err != nil {
		return nil, err
	}
	defer d.end()
	mode, err := d.pushContextRelaxed()
	if err != nil {
		return nil, err
	}
	defer d.popContextRelaxed(mode)
	a := &allocation{kind: kind, bytes: bytes}
	// No peer may be added between the allocation and its entry in regions, because the peer would
	// not get access to it.
	d.peers.making.RLock()
	defer d.peers.making.RUnlock()
	r, err := acquire(a)
	if err != nil {
		return nil, errors.Join(err, a.free())
	}
	leak.Add(kind, bytes)
	d.mu.Lock()
	d.regions[r] = a
	d.mu.Unlock()
	return r, nil
}

// Alloc returns device memory. Shareable memory consists of whole pages of the GPU, usually of 2
// MiB.
func (d *Device) Alloc(bytes int64, o device.AllocOptions) (*mem.Region, error) {
	r, err := d.make(leak.DeviceBytes, bytes, func(a *allocation) (*mem.Region, error) {
		p, err := d.acquireAs(uint64(bytes), o, a)
		if err != nil {
			return nil, err
		}
		return mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Device: d.info.Index, Len: bytes, Dev: mem.DevAddr(p)})
	})
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes of device %d: %w", bytes, d.info.Index, err)
	}
	return r, nil
}

// ipcBytes is the unit of the driver's plain allocations. A process that receives part of a unit
// can access all of it, so shared memory uses separate units.
const ipcBytes = 2 << 20

func (d *Device) acquireAs(bytes uint64, o device.AllocOptions, a *allocation) (cuda.DevicePtr, error) {
	if !o.Shareable {
		return d.acquire(bytes, a)
	}
	switch o.Handle {
	case 0, device.HandlePosixFD:
		return d.acquireShareable(bytes, device.HandlePosixFD, cuda.MemHandlePosixFD, a)
	case device.HandleFabric:
		return d.acquireShareable(bytes, device.HandleFabric, cuda.MemHandleFabric, a)
	case device.HandleCUDAIPC:
		return d.acquire((bytes+ipcBytes-1)/ipcBytes*ipcBytes, a)
	case device.HandleMemFD:
	}
	return 0, d.lack("memory by handle "+o.Handle.String(), "CUDA does not support it")
}

func (d *Device) acquire(bytes uint64, a *allocation) (cuda.DevicePtr, error) {
	p, r := d.api.MemAlloc(bytes)
	if r != cuda.Success {
		return 0, d.fail(r, "cuMemAlloc_v2", "bytes=%d", bytes)
	}
	a.undo(func() error { return d.check(d.api.MemFree(p), "cuMemFree_v2", "address=%#x", p) })
	a.at, a.size, a.by = p, bytes, device.HandleCUDAIPC
	return p, nil
}

func (d *Device) acquireShareable(bytes uint64, by device.HandleType, handle cuda.MemHandleType, a *allocation) (cuda.DevicePtr, error) {
	prop := cuda.MemProp{Device: d.id, RDMA: d.rdma, Handle: handle}
	gran, r := d.api.MemGetGranularity(prop)
	if r != cuda.Success {
		return 0, d.fail(r, "cuMemGetAllocationGranularity", "device=%d", d.info.Index)
	}
	if gran == 0 || bytes > math.MaxInt64-gran {
		return 0, fmt.Errorf("%d bytes in units of %d: %w", bytes, gran, errdefs.ErrInvalid)
	}
	size := (bytes + gran - 1) / gran * gran
	err := d.mapped(size, a, func() (cuda.MemHandle, error) {
		h, r := d.api.MemCreate(size, prop)
		if r != cuda.Success {
			return 0, d.fail(r, "cuMemCreate", "bytes=%d, device=%d, handle=%s", size, d.info.Index, by)
		}
		return h, nil
	})
	if err != nil {
		return 0, err
	}
	a.by = by
	for _, peer := range d.peers.readers {
		if err := d.open(a, peer); err != nil {
			return 0, err
		}
	}
	return a.at, nil
}

// mapped maps the memory of a handle that get creates for this device. It is undone in the order:
// unmap, release, free the address.
func (d *Device) mapped(size uint64, a *allocation, get func() (cuda.MemHandle, error)) error {
	p, r := d.api.MemAddressReserve(size)
	if r != cuda.Success {
		return d.fail(r, "cuMemAddressReserve", "bytes=%d", size)
	}
	a.undo(func() error {
		return d.check(d.api.MemAddressFree(p, size), "cuMemAddressFree", "address=%#x, bytes=%d", p, size)
	})
	h, err := get()
	if err != nil {
		return err
	}
	a.undo(func() error { return d.check(d.api.MemRelease(h), "cuMemRelease", "handle=%#x", h) })
	if r := d.api.MemMap(p, size, h); r != cuda.Success {
		return d.fail(r, "cuMemMap", "address=%#x, bytes=%d", p, size)
	}
	a.undo(func() error { return d.check(d.api.MemUnmap(p, size), "cuMemUnmap", "address=%#x, bytes=%d", p, size) })
	if r := d.api.MemSetAccess(p, size, d.id); r != cuda.Success {
		return d.fail(r, "cuMemSetAccess", "address=%#x, bytes=%d, device=%d", p, size, d.info.Index)
	}
	a.at, a.size, a.handle = p, size, h
	return nil
}

// Free releases a region of this device. If the driver refuses, the region stays allocated and may
// be freed again.
func (d *Device) Free(r *mem.Region) error {
	if err := d.begin(); err != nil {
		return fmt.Errorf("free %s: %w", r, err)
	}
	defer d.end()
	d.peers.making.RLock()
	defer d.peers.making.RUnlock()
	// Remove the region first, so that only one of two concurrent calls finds it.
	d.mu.Lock()
	a, ok := d.regions[r]
	delete(d.regions, r)
	d.mu.Unlock()
	if !ok {
		return fmt.Errorf("free %s: it is not of device %d, or was freed before: %w", r, d.info.Index, errdefs.ErrInvalid)
	}
	if err := d.free(a); err != nil {
		d.mu.Lock()
		d.regions[r] = a
		d.mu.Unlock()
		return fmt.Errorf("free %s: %w", r, err)
	}
	return nil
}

func (d *Device) free(a *allocation) error {
	mode, err := d.pushContextRelaxed()
	if err != nil {
		return err
	}
	defer d.popContextRelaxed(mode)
	if err := a.free(); err != nil {
		return err
	}
	leak.Add(a.kind, -a.bytes)
	return nil
}

// abandonRegions frees the remaining regions when the device closes.
func (d *Device) abandonRegions() error {
	if len(d.regions) == 0 {
		return nil
	}
	var bytes int64
	var errs []error
	for r, a := range d.regions {
		bytes += a.bytes
		if err := d.free(a); err != nil {
			errs = append(errs, fmt.Errorf("free %s: %w", r, err))
		}
	}
	return errors.Join(append([]error{fmt.Errorf("close device %d: %d regions of %d bytes in all were not freed: %w",
		d.info.Index, len(d.regions), bytes, errdefs.ErrBusy)}, errs...)...)
}
