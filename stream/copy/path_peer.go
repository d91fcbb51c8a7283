package copy

import (
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// A kernel that copies between GPUs keeps as many bytes in flight as its multiprocessors can: over 18 NVLinks, of 387
// GB/s, 32 thread blocks push 348 in scattered 4 KiB pages and 354 in larger ones, 132 push 362 and 369 (H200). More
// multiprocessors than that have not been measured.
const (
	minPeerCTAs = 32
	maxPeerCTAs = 132
)

// peerPaths are the paths between devices. A batch of which a part goes from one device to another takes one of them, any
// other batch none, except where it is forced.
func peerPaths() plan.Paths { return plan.PathSet(stream.PathPeerCopyEngine, stream.PathPeerKernel) }

// peerEngine is peer-copy-engine: copy-engine by another name, as addresses are one space for all devices.
type peerEngine struct{ engine }

func (e *peerEngine) available() error { return e.s.hasPeers() }

// peerKernel is peer-kernel: the kernels of path kernel, with more thread blocks.
type peerKernel struct{ *kernel }

func newPeerKernel(s *Stream) *peerKernel {
	k := plainKernel(s)
	k.ctas = min(max(s.dev.Info().Multiprocs, minPeerCTAs), maxPeerCTAs)
	return &peerKernel{k}
}

func (k *peerKernel) available() error {
	if err := k.s.hasPeers(); err != nil {
		return err
	}
	return k.kernel.available()
}

// hasPeers returns why the device can have no peers, or nil. Whether it reaches one is asked for each batch.
func (s *Stream) hasPeers() error {
	if _, ok := s.dev.(device.Peerer); !ok {
		return fmt.Errorf("it knows no peers: %w", errdefs.ErrNotSupported)
	}
	return nil
}

// reachesPeer reports whether r is memory of a peer to which access was enabled.
func (s *Stream) reachesPeer(r *mem.Region) bool {
	p, ok := s.dev.(device.Peerer)
	return ok && p.Reaches(r.Device())
}
