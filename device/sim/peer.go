package sim

import (
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// OpPeer is the operation that Options.Faults counts for Device.EnablePeer.
const OpPeer = "enable-peer"

var _ device.Peerer = (*Device)(nil)

// reach lists the address spaces that operations of a device may access: its own and those of its
// peers, ascending by device. They are locked in that order, so that two devices that access each
// other's memory do not deadlock while other goroutines free memory on both.
type reach []*space

func (r reach) lock() {
	for _, s := range r {
		s.mu.RLock()
	}
}

func (r reach) unlock() {
	for _, s := range r {
		s.mu.RUnlock()
	}
}

// find returns the live or freed span that contains addr, or nil. The caller holds the locks.
func (r reach) find(addr mem.DevAddr) *span {
	for _, s := range r {
		if sp := s.find(addr); sp != nil {
			return sp
		}
	}
	return nil
}

// lockMemory locks the memory that operations of the space's device may access.
func (s *space) lockMemory() reach {
	r := *s.reach.Load()
	r.lock()
	return r
}

// lockMemory locks the memory that the running operation may access, until release.
func (x *executor) lockMemory() { x.reach = x.space.lockMemory() }

func (x *executor) release() {
	x.reach.unlock()
	x.reach = nil
}

// EnablePeer implements device.Peerer. Any two simulated devices of different indexes can be peers.
func (d *Device) EnablePeer(other device.Device) error {
	const call = "simCtxEnablePeerAccess"
	o, ok := other.(*Device)
	if !ok || o.o.Index == d.o.Index {
		return fmt.Errorf("enable peer access of simulated device %d: the peer is not another simulated device: %w", d.o.Index, errdefs.ErrInvalid)
	}
	if f, hit := d.o.Faults.Hit(OpPeer); hit {
		return fmt.Errorf("enable access of simulated device %d to %d: %w", d.o.Index, o.o.Index, errInjected(call, &f))
	}
	for _, each := range []*Device{d, o} {
		if each.isClosed() {
			return fmt.Errorf("enable access of simulated device %d to %d: %w", d.o.Index, o.o.Index, errClosed(call))
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	r := slices.DeleteFunc(slices.Clone(*d.space.reach.Load()), func(s *space) bool { return s.index == o.o.Index })
	r = append(r, o.space)
	slices.SortFunc(r, func(a, b *space) int { return a.index - b.index })
	d.space.reach.Store(&r)
	if d.peers == nil {
		d.peers = make(map[int]*Device)
	}
	d.peers[o.o.Index] = o
	return nil
}

// Reaches implements device.Peerer.
func (d *Device) Reaches(r *mem.Region) bool {
	switch {
	case d.imports(r):
		return true
	case r.Origin() != nil:
		return false // another device imported it
	}
	return r.Device() == d.o.Index || d.peer(r.Device()) != nil
}

// peer returns the open device with this index whose memory is accessible, or nil.
func (d *Device) peer(index int) *Device {
	d.mu.Lock()
	o := d.peers[index]
	d.mu.Unlock()
	if o == nil || o.isClosed() {
		return nil
	}
	return o
}

func (d *Device) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

// owner returns the device whose address space may contain r.
func (d *Device) owner(r *mem.Region) *Device {
	if r.Kind() == mem.KindDevice && r.Device() != d.o.Index && !d.imports(r) {
		if o := d.peer(r.Device()); o != nil {
			return o
		}
	}
	return d
}
