package device

import "github.com/kvlane/kvlane/mem"

// DMABufExporter is a Device whose memory other drivers of the kernel can map, such as an RDMA NIC's.
type DMABufExporter interface {
	Device
	// ExportDMABuf returns the descriptor of a new dma-buf that holds e, which lies in memory of this device, whoever
	// allocated it, and the offset in bytes of e's first byte in it. The caller closes the descriptor. What has mapped the
	// dma-buf by then goes on to reach the memory, which must not be freed before that has let go of it. ErrNotSupported,
	// with the reason, where the device or its driver cannot; ErrInvalid for memory of the host or of another device.
	ExportDMABuf(e mem.Extent) (fd int, off int64, err error)
}

// RemoteWriteFlusher is a Device that can tell when NICs' writes to its memory are seen. A NIC reports a write when it has
// left for the bus, and the device may still read the old bytes then.
type RemoteWriteFlusher interface {
	Device
	// NeedsFlush reports whether work of this device, or of others that reach its memory, may miss what a NIC wrote
	// before, unless FlushRemoteWrites is called in between. It does not change while the device is open. ErrNotSupported,
	// with the reason, where that is so and nothing can be done about it.
	NeedsFlush() (bool, error)
	// FlushRemoteWrites blocks until what NICs have written to the device's memory, as they report, is seen by work that
	// starts later, on any device: some microseconds. Where no flush is needed it does no harm.
	FlushRemoteWrites() error
}
