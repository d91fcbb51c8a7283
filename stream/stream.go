package stream

import (
	"context"
	"fmt"

	"github.com/kvlane/kvlane/device"
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
	PathPosix                       // read and write system calls
)

var pathNames = [...]string{"none", "copy-engine", "copy-engine-batch", "kernel", "posix"}

// String returns the path's name as options and reports use it.
func (p Path) String() string {
	if int(p) < len(pathNames) {
		return pathNames[p]
	}
	return fmt.Sprintf("path(%d)", uint8(p))
}
