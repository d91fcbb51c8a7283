package device

import "github.com/kvlane/kvlane/mem"

// Peerer is a Device with direct access to the memory of another device of the same implementation,
// over NVLink or PCIe and not through the host.
type Peerer interface {
	Device
	// EnablePeer lets queues and kernels of this device read and write all present and future
	// memory of other. Access in the other direction needs other.EnablePeer. A second call does
	// nothing. EnablePeer returns ErrNotSupported if the hardware has no direct path. It returns
	// ErrInvalid for a device of another implementation and for the device itself. It may block
	// while a driver maps memory.
	EnablePeer(other Device) error
	// Reaches reports whether work of this device can access r, of kind device. It returns true for
	// its own memory, for memory of an open device for which EnablePeer has succeeded, and for
	// memory that this device has imported. It does not block.
	Reaches(r *mem.Region) bool
}
