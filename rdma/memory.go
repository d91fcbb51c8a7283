package rdma

import "github.com/kvlane/kvlane/mem"

// PD is a protection domain: work requests of its queue pairs reach its memory regions and no other.
type PD interface {
	// RegMR registers an extent, for as long as the memory region is open: the caller sees to it that the memory lives
	// longer. Memory that the CPU reaches is registered at its CPU address, device memory at its device address through a
	// peer memory module of the kernel: ErrNotSupported, with the module's name, where there is none. Pages are pinned,
	// which costs about 0.2 us a page: this is no call for the transfer path. ErrInvalid for an empty extent and for
	// access flags that contradict each other (remote write needs local write); ErrNoMemory where the locked-memory limit
	// is in the way.
	RegMR(e mem.Extent, access Access) (MR, error)
	// RegDMABufMR registers an extent of device memory by the dma-buf that exports it: fd is its descriptor, which may be
	// closed afterwards, and off the offset in bytes of the extent's first byte in the dma-buf. Work requests name the
	// memory by its device address all the same. ErrNotSupported where the device or the kernel cannot.
	RegDMABufMR(e mem.Extent, fd int, off int64, access Access) (MR, error)
	// CreateQP makes a queue pair of a reliable connection, in QPSReset. ErrInvalid for capacities beyond the device's.
	CreateQP(o QPOptions) (QP, error)
	// CreateSRQ makes a shared receive queue.
	CreateSRQ(caps SRQCaps) (SRQ, error)
	// Close frees the domain. ErrBusy while a memory region, queue pair or shared receive queue of it is open.
	Close() error
}

// MR is a registered memory region.
type MR interface {
	// Info says how work requests name the region. It does not change. Never waits.
	Info() MRInfo
	// Close deregisters the memory. When it has returned nil no device touches the memory any more. Requests that name
	// the region and have not finished fail, or finish first: who wants neither waits for their completions.
	Close() error
}

// MRInfo says how work requests name a memory region.
type MRInfo struct {
	Extent mem.Extent // what was registered
	Addr   uint64     // address of the first byte in SGE.Addr and SendWR.RemoteAddr
	LKey   uint32     // for SGE.LKey
	RKey   uint32     // for SendWR.RKey, also of peers
	Access Access
}

// SGE returns the scatter-gather entry of n bytes from byte off of the region, whose bounds it does not check.
func (m *MRInfo) SGE(off int64, n uint32) SGE {
	return SGE{Addr: m.Addr + uint64(off), Length: n, LKey: m.LKey}
}
