package cuda

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/cuda"
	"github.com/kvlane/kvlane/mem"
)

var (
	_ device.DMABufExporter     = (*Device)(nil)
	_ device.RemoteWriteFlusher = (*Device)(nil)
)

// attribute returns an attribute of the device. It needs no context.
func (d *Device) attribute(a cuda.Attribute) (int, error) {
	v, r := d.api.DeviceGetAttribute(a, d.id)
	if r != cuda.Success {
		return 0, d.fail(r, "cuDeviceGetAttribute", "attribute=%d, device=%d", a, d.info.Index)
	}
	return v, nil
}

// ExportDMABuf implements device.DMABufExporter. The driver requires the dma-buf to consist of
// whole pages of the host, of 4 or 64 KiB. Therefore it may begin before e and end after it.
func (d *Device) ExportDMABuf(e mem.Extent) (fd int, off int64, err error) {
	if fd, off, err = d.exportDMABuf(e); err != nil {
		return -1, 0, fmt.Errorf("export dma-buf of %d bytes at %d of the %s: %w", e.Len, e.Off, e.Region, err)
	}
	return fd, off, nil
}

func (d *Device) exportDMABuf(e mem.Extent) (fd int, off int64, err error) {
	if err := e.Validate(); err != nil {
		return -1, 0, err
	}
	if e.Region.Kind() != mem.KindDevice || e.Region.Device() != d.info.Index || e.Len == 0 {
		return -1, 0, fmt.Errorf("not memory of device %d: %w", d.info.Index, errdefs.ErrInvalid)
	}
	if err := d.begin(); err != nil {
		return -1, 0, err
	}
	defer d.end()
	can, err := d.attribute(cuda.AttrDMABuf)
	if err != nil {
		return -1, 0, err
	}
	switch {
	case can == 0:
		return -1, 0, d.lack("dma-bufs", "CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED is 0: they need the driver's open kernel modules, and Linux 5.12")
	case d.api.MemExportDMABuf == nil:
		return -1, 0, d.lack("dma-bufs", "driver "+d.info.DriverVersion+" has no cuMemGetHandleForAddressRange")
	}
	mode, err := d.pushContextRelaxed()
	if err != nil {
		return -1, 0, err
	}
	defer d.popContextRelaxed(mode)
	start, end := pages(uint64(e.Dev()), uint64(e.Len), uint64(unix.Getpagesize()))
	fd, r := d.api.MemExportDMABuf(cuda.DevicePtr(start), end-start)
	if r != cuda.Success {
		return -1, 0, d.fail(r, "cuMemGetHandleForAddressRange", "address=%#x, bytes=%d, handle=dma-buf", start, end-start)
	}
	unix.CloseOnExec(fd)
	return fd, int64(uint64(e.Dev()) - start), nil
}

// pages returns the bounds of the pages that contain n bytes at addr.
func pages(addr, n, page uint64) (start, end uint64) {
	return addr &^ (page - 1), (addr + n + page - 1) &^ (page - 1)
}

// NeedsFlush implements device.RemoteWriteFlusher.
func (d *Device) NeedsFlush() (bool, error) {
	if err := d.begin(); err != nil {
		return false, fmt.Errorf("query the order of NICs' writes: %w", err)
	}
	defer d.end()
	ordering, err := d.attribute(cuda.AttrRDMAOrdering)
	if err != nil {
		return false, fmt.Errorf("query the order of NICs' writes: %w", err)
	}
	if cuda.RDMAScope(ordering) >= cuda.RDMAScopeAllDevices {
		return false, nil
	}
	options, err := d.attribute(cuda.AttrRDMAFlushOptions)
	if err != nil {
		return false, fmt.Errorf("query methods to flush NICs' writes: %w", err)
	}
	if options&cuda.FlushByHost == 0 || d.api.FlushGPUDirectRDMAWrites == nil {
		return true, d.lack("flush of NICs' writes", fmt.Sprintf(
			"CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING is %d, and _FLUSH_WRITES_OPTIONS %#x without the host's", ordering, options))
	}
	return true, nil
}

// FlushRemoteWrites implements device.RemoteWriteFlusher.
func (d *Device) FlushRemoteWrites() error {
	if err := d.begin(); err != nil {
		return fmt.Errorf("flush NICs' writes: %w", err)
	}
	defer d.end()
	if d.api.FlushGPUDirectRDMAWrites == nil {
		return fmt.Errorf("flush NICs' writes: %w", d.lack("cuFlushGPUDirectRDMAWrites", "driver "+d.info.DriverVersion+" does not have it"))
	}
	mode, err := d.pushContextRelaxed()
	if err != nil {
		return fmt.Errorf("flush NICs' writes: %w", err)
	}
	defer d.popContextRelaxed(mode)
	if r := d.api.FlushGPUDirectRDMAWrites(cuda.RDMAScopeAllDevices); r != cuda.Success {
		return fmt.Errorf("flush NICs' writes: %w", d.fail(r, "cuFlushGPUDirectRDMAWrites", "target=current, to=all devices"))
	}
	return nil
}
