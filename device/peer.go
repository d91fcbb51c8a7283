package device

import "github.com/kvlane/kvlane/mem"

// Peerer is a Device whose work may reach the memory of another device of the same implementation, directly: over NVLink
// or over PCIe, and not by way of the host.
type Peerer interface {
	Device
	// EnablePeer lets queues and kernels of this device read and write memory of other, whenever that was or will be
	// allocated. Work of other reaches memory of this device only after other.EnablePeer has been called too. Enabling
	// twice does nothing. ErrNotSupported where the hardware has no such way, ErrInvalid for a device of another
	// implementation and for the device itself. It may block while a driver maps memory.
	EnablePeer(other Device) error
	// Reaches reports whether work of this device reaches r, of kind device: its own memory, that of an open device for which
	// EnablePeer has succeeded, and what this device has imported. It does not block.
	Reaches(r *mem.Region) bool
}
