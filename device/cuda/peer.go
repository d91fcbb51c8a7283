package cuda

import (
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/cuda"
	"github.com/kvlane/kvlane/mem"
)

var _ device.Peerer = (*Device)(nil)

// peers is the state of access between this device and others.
type peers struct {
	// making is held for reading while memory is allocated, and for writing while a reader is
	// added. Every shareable region thus gets every reader, in either order. Freeing also holds it
	// for reading, so that memory exists while a reader gets access.
	making  sync.RWMutex
	readers []*Device // devices that can access this device's memory

	mu    sync.Mutex
	reach map[int]*Device // devices whose memory this device can access, by index
}

// EnablePeer implements device.Peerer. The context opens memory of cuMemAlloc as a whole, and
// shareable memory region by region. Access that other code in the process has enabled counts too.
// Access is kept until the context ends, because the host program may rely on it.
func (d *Device) EnablePeer(other device.Device) error {
	o, ok := other.(*Device)
	if !ok || o.id == d.id {
		return fmt.Errorf("enable peer access of device %d: the peer is not another device of this driver: %w", d.info.Index, errdefs.ErrInvalid)
	}
	if err := d.enablePeer(o); err != nil {
		return fmt.Errorf("enable access of device %d to memory of device %d: %w", d.info.Index, o.info.Index, err)
	}
	return nil
}

func (d *Device) enablePeer(o *Device) error {
	for _, each := range []*Device{d, o} {
		if err := each.begin(); err != nil {
			return err
		}
		defer each.end()
	}
	o.peers.making.Lock()
	defer o.peers.making.Unlock()
	if d.reachesPeer(o.info.Index) {
		return nil
	}
	can, r := d.api.DeviceCanAccessPeer(d.id, o.id)
	if r != cuda.Success {
		return d.fail(r, "cuDeviceCanAccessPeer", "device=%d, peer=%d", d.info.Index, o.info.Index)
	}
	if !can {
		return fmt.Errorf("the devices have no direct connection: %w", errdefs.ErrNotSupported)
	}
	if err := d.enableContext(o); err != nil {
		return err
	}
	if err := o.openAll(d); err != nil {
		return err
	}
	o.peers.readers = append(o.peers.readers, d)
	d.peers.mu.Lock()
	defer d.peers.mu.Unlock()
	if d.peers.reach == nil {
		d.peers.reach = make(map[int]*Device)
	}
	d.peers.reach[o.info.Index] = o
	return nil
}

func (d *Device) enableContext(o *Device) error {
	mode, err := d.pushContextRelaxed()
	if err != nil {
		return err
	}
	defer d.popContextRelaxed(mode)
	if r := d.api.CtxEnablePeerAccess(o.ctx); r != cuda.Success && r != cuda.ErrorPeerAccessAlreadyEnabled {
		return d.fail(r, "cuCtxEnablePeerAccess", "peer=%d", o.info.Index)
	}
	return nil
}

// openAll gives reader access to all shareable memory. The caller holds making.
func (d *Device) openAll(reader *Device) error {
	d.mu.Lock()
	var all []*allocation
	for _, a := range d.regions {
		if a.piecemeal() {
			all = append(all, a)
		}
	}
	d.mu.Unlock()
	if len(all) == 0 {
		return nil
	}
	mode, err := d.pushContextRelaxed()
	if err != nil {
		return err
	}
	defer d.popContextRelaxed(mode)
	for _, a := range all {
		if err := d.open(a, reader); err != nil {
			return err
		}
	}
	return nil
}

// open gives reader access to shareable memory.
func (d *Device) open(a *allocation, reader *Device) error {
	if reader.isClosed() {
		return nil
	}
	if r := d.api.MemSetAccess(a.at, a.size, reader.id); r != cuda.Success {
		return d.fail(r, "cuMemSetAccess", "address=%#x, bytes=%d, device=%d", a.at, a.size, reader.info.Index)
	}
	return nil
}

// Reaches implements device.Peerer. It returns false for a closed device, even if the device was
// opened again, because its context may differ.
func (d *Device) Reaches(r *mem.Region) bool {
	switch {
	case d.imports(r):
		return true
	case r.Origin() != nil:
		return false // only the device that imported the memory has access
	}
	return r.Device() == d.info.Index || d.reachesPeer(r.Device())
}

func (d *Device) reachesPeer(index int) bool {
	d.peers.mu.Lock()
	o := d.peers.reach[index]
	d.peers.mu.Unlock()
	return o != nil && !o.isClosed()
}

func (d *Device) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}
