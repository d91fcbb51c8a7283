package rdma

import (
	"fmt"
	"math"
	"os"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// PD is a protection domain. Work requests of its queue pairs can access only its memory regions.
type PD interface {
	// RegMR registers an extent until the memory region is closed. The memory must outlive the
	// region. It is pinned by its CPU address, even if work requests use its device address
	// (OwnAddr). Memory without a CPU address is registered by its device address through the
	// kernel's peer memory module. Without the module, RegMR returns ErrNotSupported with the
	// module's name. Pinning takes about 0.2 us for each page: do not call RegMR on the transfer
	// path.
	//
	// RegMR returns the errors of MROptions.Validate. It returns ErrInvalid or ErrNotSupported if
	// the device does not accept an IOVA, ErrNotSupported if it cannot register host-pinned memory
	// at its device address, and ErrNoMemory if the limit on locked memory is too low.
	RegMR(e mem.Extent, o MROptions) (MR, error)
	// RegDMABufMR registers an extent of device memory through its dma-buf. fd is the descriptor of
	// the dma-buf; the caller may close it afterwards. off is the offset in bytes of the extent in
	// the dma-buf. Without an IOVA in o, work requests use the memory's device address. It returns
	// ErrNotSupported if the device or the kernel does not support dma-bufs.
	RegDMABufMR(e mem.Extent, fd int, off int64, o MROptions) (MR, error)
	// CreateQP creates a queue pair of a reliable connection in QPSReset. It returns ErrInvalid if
	// a capacity exceeds the limit of the device.
	CreateQP(o QPOptions) (QP, error)
	// CreateSRQ creates a shared receive queue.
	CreateSRQ(caps SRQCaps) (SRQ, error)
	// Close closes the domain. It returns ErrBusy while one of its memory regions, queue pairs or
	// shared receive queues is open.
	Close() error
}

// MROptions are the options for registering memory.
type MROptions struct {
	// Access is the set of operations that work requests may use. Local reads are always permitted.
	Access Access
	// IOVA is the address of the first byte in local and remote work requests. With zero, remote
	// addresses are offsets. IOVA must have the same offset within a page as the memory. Nil:
	// OwnAddr.
	IOVA *uint64
}

const (
	accessNeedsLocal = AccessRemoteWrite | AccessRemoteAtomic
	accessKnown      = AccessLocalWrite | AccessRemoteRead | accessNeedsLocal | AccessRelaxedOrdering
)

// Validate returns ErrInvalid if e cannot be registered with these options. Reasons are an empty
// extent or one outside its region, unknown or contradictory flags, and an IOVA that has a
// different offset within a page or overflows within the extent.
func (o *MROptions) Validate(e mem.Extent) error {
	if err := e.Validate(); err != nil {
		return err
	}
	mapped, addr := MappedAddr(e), o.Addr(e)
	switch {
	case e.Len == 0:
		return fmt.Errorf("an empty part of the %s: %w", e.Region, errdefs.ErrInvalid)
	case o.Access&^accessKnown != 0:
		return fmt.Errorf("unknown access %s: %w", o.Access, errdefs.ErrInvalid)
	case o.Access&accessNeedsLocal != 0 && o.Access&AccessLocalWrite == 0:
		return fmt.Errorf("access %s without %s: %w", o.Access, AccessLocalWrite, errdefs.ErrInvalid)
	case (mapped^addr)%uint64(os.Getpagesize()) != 0:
		return fmt.Errorf("IOVA %#x of memory at %#x: their offsets in a page differ: %w", addr, mapped, errdefs.ErrInvalid)
	case addr > math.MaxUint64-uint64(e.Len):
		return fmt.Errorf("%d bytes from %#x end beyond the address space: %w", e.Len, addr, errdefs.ErrInvalid)
	}
	return nil
}

// Addr returns the address of e's first byte in work requests.
func (o *MROptions) Addr(e mem.Extent) uint64 {
	if o.IOVA != nil {
		return *o.IOVA
	}
	return OwnAddr(e)
}

// OwnAddr returns the default address of e's first byte in work requests. It is the device address
// for device memory and host-pinned memory, and the CPU address for pageable memory.
func OwnAddr(e mem.Extent) uint64 {
	if a := e.Dev(); a != 0 {
		return uint64(a)
	}
	return uint64(e.CPU())
}

// MappedAddr returns the address of e's first byte that is passed to the driver: the CPU address,
// or the device address of device memory. It differs from OwnAddr for host-pinned memory with two
// different addresses.
func MappedAddr(e mem.Extent) uint64 {
	if a := e.CPU(); a != 0 {
		return uint64(a)
	}
	return uint64(e.Dev())
}

// MR is a registered memory region.
type MR interface {
	// Info returns the keys and the address for work requests. They do not change. Info never
	// waits.
	Info() MRInfo
	// Close deregisters the memory. If it returns nil, the device no longer accesses the memory.
	// Requests that still use the region may fail; to avoid this, wait for their completions first.
	Close() error
}

// MRInfo identifies a memory region in work requests.
type MRInfo struct {
	Extent mem.Extent // the registered memory
	Addr   uint64     // address of the first byte in SGE.Addr and SendWR.RemoteAddr
	LKey   uint32     // local key, for SGE.LKey
	RKey   uint32     // remote key, for SendWR.RKey of this process and its peers
	Access Access
}

// SGE returns the scatter-gather entry for n bytes at offset off of the region. It does not check
// bounds.
func (m *MRInfo) SGE(off int64, n uint32) SGE {
	return SGE{Addr: m.Addr + uint64(off), Length: n, LKey: m.LKey}
}
