package rdma

import (
	"fmt"
	"math"
	"os"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// PD is a protection domain: work requests of its queue pairs reach its memory regions only.
type PD interface {
	// RegMR registers an extent until the memory region is closed. The memory must live longer. It
	// is pinned by its CPU address, also if work requests use its device address (OwnAddr). Memory
	// without a CPU address is reached by its device address through a peer memory module of the
	// kernel; without that, RegMR returns ErrNotSupported with the module's name. Pinning takes about 0.2 us for each page: do not call RegMR on the transfer
	// path. It returns the errors of MROptions.Validate, ErrInvalid or ErrNotSupported if the
	// device does not accept an IOVA, ErrNotSupported if it cannot register host-pinned memory at
	// its device address, and ErrNoMemory if the limit on locked memory is too low.
	RegMR(e mem.Extent, o MROptions) (MR, error)
	// RegDMABufMR registers an extent of device memory through the dma-buf that exports it. fd is
	// the descriptor, which may be closed afterwards. off is the offset in bytes of the extent in
	// the dma-buf. Without an IOVA in o, work requests still use the memory's device address. It
	// returns ErrNotSupported if the device or the kernel cannot.
	RegDMABufMR(e mem.Extent, fd int, off int64, o MROptions) (MR, error)
	// CreateQP creates a queue pair of a reliable connection in QPSReset. It returns ErrInvalid for
	// capacities above those of the device.
	CreateQP(o QPOptions) (QP, error)
	// CreateSRQ creates a shared receive queue.
	CreateSRQ(caps SRQCaps) (SRQ, error)
	// Close closes the domain. It returns ErrBusy while a memory region, queue pair or shared
	// receive queue of it is open.
	Close() error
}

// MROptions are the options of registering memory.
type MROptions struct {
	// Access has the operations that work requests may do. Local reads are always permitted.
	Access Access
	// IOVA is the address of the first byte in work requests, also in those of peers. Zero makes
	// remote addresses offsets. It must have the same offset within a page as the memory. Nil: the
	// result of OwnAddr.
	IOVA *uint64
}

const (
	accessNeedsLocal = AccessRemoteWrite | AccessRemoteAtomic
	accessKnown      = AccessLocalWrite | AccessRemoteRead | accessNeedsLocal | AccessRelaxedOrdering
)

// Validate returns ErrInvalid if e cannot be registered with these options: e is empty or not
// within its region, flags are unknown or contradictory, or the IOVA has another offset within a
// page or is followed by fewer bytes than e has.
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

// OwnAddr returns the address of e's first byte in work requests without an IOVA: the device
// address of device memory and of host-pinned memory, and the CPU address of pageable memory.
func OwnAddr(e mem.Extent) uint64 {
	if a := e.Dev(); a != 0 {
		return uint64(a)
	}
	return uint64(e.CPU())
}

// MappedAddr returns the address of e's first byte that a driver registers: the CPU address, or the
// device address of device memory. It differs from OwnAddr for host-pinned memory whose two
// addresses differ.
func MappedAddr(e mem.Extent) uint64 {
	if a := e.CPU(); a != 0 {
		return uint64(a)
	}
	return uint64(e.Dev())
}

// MR is a registered memory region.
type MR interface {
	// Info returns the data that identifies the region in work requests. It does not change. Info
	// never waits.
	Info() MRInfo
	// Close deregisters the memory. If it returns nil, no device touches the memory any more.
	// Unfinished requests with the region fail or finish first; to avoid both, wait for their
	// completions.
	Close() error
}

// MRInfo identifies a memory region in work requests.
type MRInfo struct {
	Extent mem.Extent // the registered memory
	Addr   uint64     // address of the first byte in SGE.Addr and SendWR.RemoteAddr
	LKey   uint32     // for SGE.LKey
	RKey   uint32     // for SendWR.RKey, also of peers
	Access Access
}

// SGE returns the scatter-gather entry of n bytes from byte off of the region. It does not check
// bounds.
func (m *MRInfo) SGE(off int64, n uint32) SGE {
	return SGE{Addr: m.Addr + uint64(off), Length: n, LKey: m.LKey}
}
