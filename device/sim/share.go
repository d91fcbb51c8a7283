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

// Names of the operations that Options.Faults counts for Device.ExportMemory and
// Device.ImportMemory.
const (
	OpExport = "export-memory"
	OpImport = "import-memory"
)

var _ device.Sharer = (*Device)(nil)

// HandleTypes implements device.Sharer.
func (d *Device) HandleTypes() []device.HandleType { return []device.HandleType{device.HandleMemFD} }

// ExportMemory implements device.Sharer for memory allocated as shareable.
func (d *Device) ExportMemory(r *mem.Region, t device.HandleType) (device.Handle, error) {
	h, err := d.exportMemory(r, t)
	if err != nil {
		return device.Handle{}, fmt.Errorf("export %s as %s: %w", r, t, err)
	}
	return h, nil
}

func (d *Device) exportMemory(r *mem.Region, t device.HandleType) (h device.Handle, err error) {
	const call = "simMemExportToShareableHandle"
	if f, hit := d.o.Faults.Hit(OpExport); hit {
		return h, errInjected(call, &f)
	}
	if d.isClosed() {
		return h, errClosed(call)
	}
	if r == nil || r.Kind() != mem.KindDevice {
		return h, errInvalidValue(call, "region="+r.String(), "it is not device memory")
	}
	d.space.mu.RLock()
	defer d.space.mu.RUnlock()
	sp := d.space.find(r.Dev())
	switch {
	case sp == nil || !d.space.holds(r):
		return h, errInvalidValue(call, "region="+r.String(), d.whyNotMine(r))
	case sp.imported || sp.fd < 0 || t != device.HandleMemFD:
		return h, native(call, fmt.Sprintf("address=%#x, handle=%s", r.Dev(), t), 801, "NOT_SUPPORTED", "the memory was not allocated for this type of handle", errdefs.ErrNotSupported)
	}
	fd, err := unix.FcntlInt(uintptr(sp.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return h, err
	}
	return device.Handle{Type: t, Device: d.info.UUID, FD: fd, Bytes: sp.len, Off: int64(r.Dev() - sp.base)}, nil
}

// ImportMemory implements device.Sharer.
func (d *Device) ImportMemory(h device.Handle) (*mem.Region, error) {
	r, err := d.importMemory(h)
	if err != nil {
		return nil, fmt.Errorf("import %d bytes of device %s by %s: %w", h.Bytes, h.Device, h.Type, err)
	}
	return r, nil
}

func (d *Device) importMemory(h device.Handle) (*mem.Region, error) {
	const call = "simMemImportFromShareableHandle"
	args := fmt.Sprintf("bytes=%d, handle=%s", h.Bytes, h.Type)
	if f, hit := d.o.Faults.Hit(OpImport); hit {
		return nil, errInjected(call, &f)
	}
	if d.isClosed() {
		return nil, errClosed(call)
	}
	if h.Type != device.HandleMemFD {
		return nil, native(call, args, 801, "NOT_SUPPORTED", "simulated memory has handles of type memfd only", errdefs.ErrNotSupported)
	}
	if err := d.standStill(call); err != nil {
		return nil, err
	}
	b, err := hostmem.MapShared(h.FD, h.Bytes)
	if err != nil {
		return nil, err
	}
	sp := &span{len: h.Bytes, kind: mem.KindDevice, owned: true, bytes: b, fd: -1, imported: true}
	if err := d.addSpan(sp, mem.RegionSpec{Kind: mem.KindDevice, Device: d.indexOf(h.Device), Len: h.Bytes}, call, args); err != nil {
		return nil, errors.Join(err, hostmem.Free(b))
	}
	leak.Add(sp.counter(), sp.len)
	return sp.region, nil
}

// indexOf returns the index of the device with this UUID. A UUID of a simulated device contains the
// index, because there is no list of devices.
func (d *Device) indexOf(uuid string) int {
	index := -1
	if n, err := fmt.Sscanf(uuid, "sim-%d", &index); n != 1 || err != nil || index < 0 {
		return device.DeviceElsewhere
	}
	return index
}

// imports reports whether r is inside memory that this device has imported.
func (d *Device) imports(r *mem.Region) bool {
	d.space.mu.RLock()
	defer d.space.mu.RUnlock()
	sp := d.space.find(r.Dev())
	return sp != nil && sp.imported && d.space.holds(r)
}
