package hostmem

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
)

// maxNodes is an upper bound of the number of NUMA nodes.
const maxNodes = 1024

// mpolPreferred is MPOL_PREFERRED of linux/mempolicy.h: pages come from the node, or from others if
// it is full.
const mpolPreferred = 1

// Prefer makes the kernel back b with pages of a NUMA node while the node has free ones. Touched
// pages do not move. b must begin at a page.
func Prefer(b []byte, node int) error {
	if len(b) == 0 || node < 0 || node >= maxNodes {
		return fmt.Errorf("place %d bytes on NUMA node %d: %w", len(b), node, errdefs.ErrInvalid)
	}
	var mask [maxNodes / 64]uint64
	mask[node/64] = 1 << (node % 64)
	// The kernel reads maxnode-1 bits of the mask.
	_, _, errno := unix.Syscall6(unix.SYS_MBIND, uintptr(Addr(b)), uintptr(len(b)), mpolPreferred, uintptr(unsafe.Pointer(&mask)), maxNodes+1, 0)
	if errno != 0 {
		return fmt.Errorf("place %d bytes at %#x on NUMA node %d: %w", len(b), Addr(b), node, errno)
	}
	return nil
}
