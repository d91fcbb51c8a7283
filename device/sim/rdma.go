package sim

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// OpFlush is the operation that Options.Faults counts for Device.FlushRemoteWrites.
const OpFlush = "flush-remote-writes"

var (
	_ device.RemoteWriteFlusher = (*Device)(nil)
	_ device.DMABufExporter     = (*Device)(nil)
)

// ExportDMABuf implements device.DMABufExporter. It needs Options.DMABufs.
func (d *Device) ExportDMABuf(e mem.Extent) (fd int, off int64, err error) {
	const call = "simMemGetHandleForAddressRange"
	switch err := e.Validate(); {
	case d.isClosed():
		return -1, 0, fmt.Errorf("export memory: %w", errClosed(call))
	case !d.o.DMABufs:
		return -1, 0, fmt.Errorf("export memory of a simulated device: Options.DMABufs is not set: %w", errdefs.ErrNotSupported)
	case err != nil:
		return -1, 0, fmt.Errorf("export memory: %w", errInvalidExtent(call, err))
	case e.Region.Kind() != mem.KindDevice || e.Region.Device() != d.o.Index:
		return -1, 0, fmt.Errorf("export memory: %w", errInvalidValue(call, "region="+e.Region.String(), "it is not memory of this device"))
	}
	if fd, err = unix.MemfdCreate("dma-buf", unix.MFD_CLOEXEC); err != nil {
		return -1, 0, fmt.Errorf("export memory: %w", err)
	}
	page := int64(os.Getpagesize())
	off = int64(e.Dev()) % page
	if err := unix.Ftruncate(fd, (off+e.Len+page-1)/page*page); err != nil {
		_ = unix.Close(fd)
		return -1, 0, fmt.Errorf("export memory: %w", err)
	}
	return fd, off, nil
}

// NeedsFlush implements device.RemoteWriteFlusher. It returns Options.RemoteWritesNeedFlush.
func (d *Device) NeedsFlush() (bool, error) {
	if d.isClosed() {
		return false, fmt.Errorf("query the order of NICs' writes: %w", errClosed("simDeviceGetAttribute"))
	}
	return d.o.RemoteWritesNeedFlush, nil
}

// FlushRemoteWrites implements device.RemoteWriteFlusher. It does nothing, because writes to
// simulated memory are visible at once.
func (d *Device) FlushRemoteWrites() error {
	const call = "simFlushGPUDirectRDMAWrites"
	if f, hit := d.o.Faults.Hit(OpFlush); hit {
		return fmt.Errorf("flush NICs' writes: %w", errInjected(call, &f))
	}
	if d.isClosed() {
		return fmt.Errorf("flush NICs' writes: %w", errClosed(call))
	}
	return nil
}
