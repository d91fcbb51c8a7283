package rdma

import (
	"fmt"
	"math"
	"os"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// PD is a protection domain: work requests of its queue pairs reach its memory regions and no other.
type PD interface {
	// RegMR registers an extent, for as long as the memory region is open: the caller sees to it that the memory lives
	// longer. The CPU address of memory that has one is pinned, and the device address of other memory through a peer memory
	// module of the kernel: ErrNotSupported, with the module's name, where there is none. Pinning costs about 0.2 us a page:
	// this is no call for the transfer path. ErrInvalid as MROptions.Validate says, or where the device does not take an IOVA
	// (ErrNotSupported where it says so); ErrNoMemory where the locked-memory limit is in the way.
	RegMR(e mem.Extent, o MROptions) (MR, error)
	// RegDMABufMR registers an extent of device memory by the dma-buf that exports it: fd is its descriptor, which may be
	// closed afterwards, and off the offset in bytes of the extent's first byte in the dma-buf. Where o names no IOVA,
	// work requests name the memory by its device address all the same. ErrNotSupported where the device or the kernel cannot.
	RegDMABufMR(e mem.Extent, fd int, off int64, o MROptions) (MR, error)
	// CreateQP makes a queue pair of a reliable connection, in QPSReset. ErrInvalid for capacities beyond the device's.
	CreateQP(o QPOptions) (QP, error)
	// CreateSRQ makes a shared receive queue.
	CreateSRQ(caps SRQCaps) (SRQ, error)
	// Close frees the domain. ErrBusy while a memory region, queue pair or shared receive queue of it is open.
	Close() error
}

// MROptions say how memory is registered.
type MROptions struct {
	// Access is what may be done to the memory by work requests; reading it for those of the own side is always allowed.
	Access Access
	// IOVA is the address of the first byte in work requests, also of peers; zero makes remote addresses offsets. It lies at the
	// same offset in a page as the memory does. nil: the memory's OwnAddr.
	IOVA *uint64
}

const (
	accessNeedsLocal = AccessRemoteWrite | AccessRemoteAtomic
	accessKnown      = AccessLocalWrite | AccessRemoteRead | accessNeedsLocal | AccessRelaxedOrdering
)

// Validate reports what is wrong with registering e so, as ErrInvalid: an extent that is empty or not within its region,
// flags that are unknown or contradict each other, an IOVA at another offset in a page or with less behind it than e is long.
func (o *MROptions) Validate(e mem.Extent) error {
	if err := e.Validate(); err != nil {
		return err
	}
	own, addr := OwnAddr(e), o.Addr(e)
	switch {
	case e.Len == 0:
		return fmt.Errorf("no bytes of the %s: %w", e.Region, errdefs.ErrInvalid)
	case o.Access&^accessKnown != 0:
		return fmt.Errorf("access %s is not known: %w", o.Access, errdefs.ErrInvalid)
	case o.Access&accessNeedsLocal != 0 && o.Access&AccessLocalWrite == 0:
		return fmt.Errorf("access %s without %s: %w", o.Access, AccessLocalWrite, errdefs.ErrInvalid)
	case (own^addr)%uint64(os.Getpagesize()) != 0:
		return fmt.Errorf("IOVA %#x of memory at %#x: their offsets in a page differ: %w", addr, own, errdefs.ErrInvalid)
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

// OwnAddr returns the address that the memory itself has for a NIC: the device address of device memory, and the CPU address of all
// other, also of pinned memory, whose device address is no NIC's.
func OwnAddr(e mem.Extent) uint64 {
	if e.Region.Kind() == mem.KindDevice {
		return uint64(e.Dev())
	}
	return uint64(e.CPU())
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
