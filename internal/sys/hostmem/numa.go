package hostmem

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
)

// maxNodes is the maximum number of NUMA nodes.
const maxNodes = 1024

// mpolPreferred is MPOL_PREFERRED of linux/mempolicy.h: allocate pages on the node, or on other
// nodes if it is full.
const mpolPreferred = 1

// Prefer sets the preferred NUMA node for the pages of b. Pages that were already accessed do not
// move. b must begin at a page boundary.
func Prefer(b []byte, node int) error {
	if len(b) == 0 || node < 0 || node >= maxNodes {
		return fmt.Errorf("place %d bytes on NUMA node %d: %w", len(b), node, errdefs.ErrInvalid)
	}
	var mask [maxNodes / 64]uint64
	mask[node/64] = 1 << (node % 64)
	// the kernel uses maxnode-1 bits of the mask
	_, _, errno := unix.Syscall6(unix.SYS_MBIND, uintptr(Addr(b)), uintptr(len(b)), mpolPreferred, uintptr(unsafe.Pointer(&mask)), maxNodes+1, 0)
	if errno != 0 {
		return fmt.Errorf("place %d bytes at %#x on NUMA node %d: %w", len(b), Addr(b), node, errno)
	}
	return nil
}
