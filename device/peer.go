package device

// Peerer is a Device whose work may reach the memory of another device of the same implementation, directly: over NVLink
// or over PCIe, and not by way of the host.
type Peerer interface {
	Device
	// EnablePeer lets queues and kernels of this device read and write memory of other, whenever that was or will be
	// allocated. Work of other reaches memory of this device only after other.EnablePeer has been called too. Enabling
	// twice does nothing. ErrNotSupported where the hardware has no such way, ErrInvalid for a device of another
	// implementation and for the device itself. It may block while a driver maps memory.
	EnablePeer(other Device) error
	// Reaches reports whether memory of the open device of that index is within reach: EnablePeer has succeeded for it.
	// It does not block. Never true for the device's own index.
	Reaches(index int) bool
}
