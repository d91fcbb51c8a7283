package cuda

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/internal/sys/cuda"
	"github.com/kvlane/kvlane/mem"
)

var _ device.Sharer = (*Device)(nil)

// HandleTypes implements device.Sharer.
func (d *Device) HandleTypes() []device.HandleType {
	return []device.HandleType{device.HandleFabric, device.HandlePosixFD, device.HandleCUDAIPC}
}

// ExportMemory implements device.Sharer.
func (d *Device) ExportMemory(r *mem.Region, t device.HandleType) (device.Handle, error) {
	h, err := d.exportMemory(r, t)
	if err != nil {
		return device.Handle{}, fmt.Errorf("export %s as %s: %w", r, t, err)
	}
	return h, nil
}

func (d *Device) exportMemory(r *mem.Region, t device.HandleType) (h device.Handle, err error) {
	if r == nil || r.Kind() != mem.KindDevice || r.Device() != d.info.Index {
		return h, fmt.Errorf("not memory of device %d: %w", d.info.Index, errdefs.ErrInvalid)
	}
	if err := d.begin(); err != nil {
		return h, err
	}
	defer d.end()
	// Without the lock, memory that is freed in between could be exported by a reused handle.
	d.peers.making.Lock()
	defer d.peers.making.Unlock()
	mode, err := d.pushContextRelaxed()
	if err != nil {
		return h, err
	}
	defer d.popContextRelaxed(mode)
	a, release, err := d.allocationOf(r, t)
	if err != nil {
		return h, err
	}
	defer release()
	if !a.holds(r) {
		return h, fmt.Errorf("it spans several allocations: %w", errdefs.ErrNotSupported)
	}
	h = device.Handle{Type: t, Device: d.info.UUID, FD: -1, Bytes: int64(a.size), Off: int64(uint64(r.Dev()) - uint64(a.at))}
	var res cuda.Result
	switch t {
	case device.HandlePosixFD:
		if h.FD, res = d.api.MemExportFD(a.handle); res != cuda.Success {
			return h, d.fail(res, "cuMemExportToShareableHandle", "handle=%#x, type=%s", a.handle, t)
		}
		unix.CloseOnExec(h.FD)
	case device.HandleFabric:
		if h.Data, res = d.api.MemExportFabric(a.handle); res != cuda.Success {
			return h, d.fail(res, "cuMemExportToShareableHandle", "handle=%#x, type=%s", a.handle, t)
		}
	case device.HandleCUDAIPC:
		if h.Data, res = d.api.IPCGetMemHandle(a.at); res != cuda.Success {
			return h, d.fail(res, "cuIpcGetMemHandle", "address=%#x", a.at)
		}
	case device.HandleMemFD:
		return h, d.lack("memory by handle "+t.String(), "CUDA does not support it")
	}
	return h, nil
}

// allocationOf returns the allocation in which r begins. The caller must call release after the
// export as t. Memory that the host program has allocated is looked up in the driver. The context
// is current.
func (d *Device) allocationOf(r *mem.Region, t device.HandleType) (a *allocation, release func(), err error) {
	for _, own := range d.allocations() {
		if !own.holds(r) {
			continue
		}
		if own.imported || own.by != t {
			return nil, nil, fmt.Errorf("the memory was made for handles of type %s, or by another process: %w", own.by, errdefs.ErrNotSupported)
		}
		return own, func() {}, nil
	}
	at := cuda.DevicePtr(r.Dev())
	a, release = &allocation{by: t}, func() {}
	var res cuda.Result
	if a.at, a.size, res = d.api.MemGetAddressRange(at); res != cuda.Success {
		return nil, nil, d.fail(res, "cuMemGetAddressRange_v2", "address=%#x", at)
	}
	if t == device.HandleCUDAIPC {
		return a, release, nil
	}
	if a.handle, res = d.api.MemRetainHandle(at); res != cuda.Success {
		return nil, nil, fmt.Errorf("the host program did not make it by cuMemCreate: %w: %w",
			d.fail(res, "cuMemRetainAllocationHandle", "address=%#x", at), errdefs.ErrNotSupported)
	}
	return a, func() { _ = d.check(d.api.MemRelease(a.handle), "cuMemRelease", "handle=%#x", a.handle) }, nil
}

// allocations returns all allocations.
func (d *Device) allocations() []*allocation {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]*allocation, 0, len(d.regions))
	for _, a := range d.regions {
		all = append(all, a)
	}
	return all
}

// ImportMemory implements device.Sharer.
func (d *Device) ImportMemory(h device.Handle) (*mem.Region, error) {
	index, res, call := indexOf(d.api, h.Device)
	if res != cuda.Success {
		return nil, fmt.Errorf("import memory of device %s: %w", h.Device, d.fail(res, call, ""))
	}
	if index < 0 {
		index = device.DeviceElsewhere
	}
	r, err := d.make(leak.ImportedBytes, h.Bytes, func(a *allocation) (*mem.Region, error) {
		if err := d.importAs(&h, a); err != nil {
			return nil, err
		}
		a.imported, a.by = true, h.Type
		d.imported.Add(1)
		a.undo(func() error { d.imported.Add(-1); return nil })
		return mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Device: index, Len: h.Bytes, Dev: mem.DevAddr(a.at)})
	})
	if err != nil {
		return nil, fmt.Errorf("import %d bytes of device %s by %s on device %d: %w", h.Bytes, h.Device, h.Type, d.info.Index, err)
	}
	return r, nil
}

func (d *Device) importAs(h *device.Handle, a *allocation) error {
	switch h.Type {
	case device.HandlePosixFD:
		return d.mapped(uint64(h.Bytes), a, func() (cuda.MemHandle, error) {
			m, r := d.api.MemImportFD(h.FD)
			return m, d.checkHandle(r, "cuMemImportFromShareableHandle", "fd=%d, type=%s", h.FD, h.Type)
		})
	case device.HandleFabric:
		return d.mapped(uint64(h.Bytes), a, func() (cuda.MemHandle, error) {
			m, r := d.api.MemImportFabric(&h.Data)
			return m, d.checkHandle(r, "cuMemImportFromShareableHandle", "type=%s", h.Type)
		})
	case device.HandleCUDAIPC:
		p, r := d.api.IPCOpenMemHandle(&h.Data)
		if r != cuda.Success {
			return d.checkHandle(r, "cuIpcOpenMemHandle_v2", "bytes=%d, flags=lazy-peer-access", h.Bytes)
		}
		a.undo(func() error { return d.check(d.api.IPCCloseMemHandle(p), "cuIpcCloseMemHandle", "address=%#x", p) })
		a.at, a.size = p, uint64(h.Bytes)
		return d.spans(a)
	case device.HandleMemFD:
	}
	return d.lack("memory by handle "+h.Type.String(), "CUDA does not support it")
}

// spans checks that a mapping is as long as its exporter claims, because a copy beyond its end
// breaks the context. If the driver cannot report the length of such mappings, spans trusts the
// exporter.
func (d *Device) spans(a *allocation) error {
	at, size, r := d.api.MemGetAddressRange(a.at)
	switch r {
	case cuda.Success:
	case cuda.ErrorInvalidValue, cuda.ErrorNotFound:
		return nil
	default:
		return d.fail(r, "cuMemGetAddressRange_v2", "address=%#x", a.at)
	}
	if off := uint64(a.at - at); off > size || a.size > size-off {
		return fmt.Errorf("the exporter reported %d bytes, the mapping has %d: %w", a.size, size-min(off, size), errdefs.ErrMismatch)
	}
	return nil
}

// checkHandle implements check for a call with a handle from another process. For an invalid handle
// the driver returns an unknown error, but stays usable.
func (d *Device) checkHandle(r cuda.Result, call, format string, args ...any) error {
	if r != cuda.ErrorUnknown {
		return d.check(r, call, format, args...)
	}
	err := nativeError(d.api, r, call, format, args...)
	err.Kind = errdefs.ErrInvalid
	return err
}

// imports reports whether r is inside memory that this device has imported.
func (d *Device) imports(r *mem.Region) bool {
	if d.imported.Load() == 0 {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.regions {
		if a.imported && a.holds(r) {
			return true
		}
	}
	return false
}
