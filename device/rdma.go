package device

import "github.com/kvlane/kvlane/mem"

// DMABufExporter is a Device whose memory other kernel drivers, such as that of an RDMA NIC, can
// map.
type DMABufExporter interface {
	Device
	// ExportDMABuf returns the descriptor of a new dma-buf that contains e, and the offset in bytes
	// of e in it. e is any memory of this device, including memory that the host program has
	// allocated. The caller closes the descriptor. Drivers that have mapped the dma-buf keep access
	// after that, so the memory must not be freed before they unmap it. ExportDMABuf returns
	// ErrNotSupported with the reason if the device or its driver cannot export. It returns
	// ErrInvalid for memory of the host or of another device.
	ExportDMABuf(e mem.Extent) (fd int, off int64, err error)
}

// RemoteWriteFlusher is a Device that can make writes of NICs to its memory visible. A NIC reports
// a write when the NIC has sent it to the bus; the device may still read the old bytes at that
// time.
type RemoteWriteFlusher interface {
	Device
	// NeedsFlush reports whether work of this device, or of others with access to its memory, may
	// miss earlier writes of a NIC unless FlushRemoteWrites is called in between. The result does
	// not change while the device is open. NeedsFlush returns ErrNotSupported with the reason if
	// writes may be missed and cannot be flushed.
	NeedsFlush() (bool, error)
	// FlushRemoteWrites blocks until all writes to the device's memory that NICs have reported are
	// visible to later work on any device. It takes some microseconds. It is harmless if no flush
	// is needed.
	FlushRemoteWrites() error
}
