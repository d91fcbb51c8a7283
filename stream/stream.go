package stream

import (
	"context"
	"fmt"
	"strings"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// Stream copies batches asynchronously. All methods are safe for concurrent use.
type Stream interface {
	// Submit accepts the whole batch or none of it. It blocks while the stream is full, until ctx ends; ctx has no say
	// over the batch once accepted. The batch and its slices stay unchanged until the ticket resolves. An empty batch
	// is valid and completes in order.
	Submit(ctx context.Context, b *mem.Batch) (*Ticket, error)
	// Close refuses new batches, cancels those not yet started, waits for the rest and frees what the stream holds. If
	// ctx ends first, the stream stays closing, keeps its memory, and Close may be called again.
	Close(ctx context.Context) error
}

// EventStream is a Stream on a device queue, which other queues and the host program can wait for and be waited for.
type EventStream interface {
	Stream
	// Record returns an event that is done when every batch submitted so far has been copied. It blocks until all of
	// them have been issued to the device, since waiting for an event not yet recorded would succeed at once.
	Record(ctx context.Context) (device.Event, error)
	// WaitEvent makes batches submitted later wait for e on the device. e stays open until those have resolved.
	WaitEvent(ctx context.Context, e device.Event) error
}

// Path is how a batch travelled.
type Path uint8

// The paths.
const (
	PathNone            Path = iota // nothing moved: an empty batch, or one that failed before it started
	PathCopyEngine                  // a copy engine, one call for each run of neighbouring extents
	PathCopyEngineBatch             // a copy engine, many copies in one call
	PathKernel                      // a kernel that copies over PCIe directly
	PathKernelBulk                  // the same through shared memory, by the GPU's bulk copies
	PathStaged                      // a copy engine over PCIe, and a kernel that gathers or scatters within device memory
	PathResident                    // a kernel that stays on the device and takes its work from a ring
	PathPeerCopyEngine              // between two devices, by a copy engine
	PathPeerKernel                  // between two devices, by a kernel of one of them
	PathPosix                       // read and write system calls
	PathNIC                         // an RDMA NIC that is connected to itself
	PathNICSoft                     // the same with a NIC in software: says nothing of what a NIC would do
)

var pathNames = [...]string{
	"none", "copy-engine", "copy-engine-batch", "kernel", "kernel-bulk", "staged", "resident", "peer-copy-engine",
	"peer-kernel", "posix", "nic", "nic-soft",
}

// Paths returns all paths on which bytes move, in order: without PathNone.
func Paths() []Path {
	all := make([]Path, 0, len(pathNames)-1)
	for i := 1; i < len(pathNames); i++ {
		all = append(all, Path(i))
	}
	return all
}

// ParsePath reads what Path.String writes. Anything else is ErrInvalid.
func ParsePath(name string) (Path, error) {
	for i, n := range pathNames {
		if n == name {
			return Path(i), nil
		}
	}
	return PathNone, fmt.Errorf("there is no path %q: it is one of %s: %w", name, strings.Join(pathNames[:], ", "), errdefs.ErrInvalid)
}

// String returns the path's name as options and reports use it.
func (p Path) String() string {
	if int(p) < len(pathNames) {
		return pathNames[p]
	}
	return fmt.Sprintf("path(%d)", uint8(p))
}
