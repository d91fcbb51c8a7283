package stream

import (
	"context"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// Stream copies batches asynchronously. All methods are safe for concurrent use.
type Stream interface {
	// Submit accepts the whole batch or nothing. It blocks while the stream is full, until ctx
	// ends. ctx does not affect an accepted batch. The batch and its slices must not change until
	// the ticket resolves. An empty batch is valid and completes in order.
	Submit(ctx context.Context, b *mem.Batch) (*Ticket, error)
	// Close refuses new batches, cancels batches that have not started, waits for the rest and
	// frees the stream's resources. If ctx ends first, the stream stays closing and keeps its
	// memory, and Close may be called again.
	Close(ctx context.Context) error
}

// EventStream is a Stream on a device queue. Other queues and the host program can wait for its
// batches, and its batches for their events.
type EventStream interface {
	Stream
	// Record returns an event that is done when every batch submitted so far has been copied. It
	// blocks until all of them have been issued to the device, since a wait for an unrecorded event
	// would succeed at once.
	Record(ctx context.Context) (device.Event, error)
	// WaitEvent makes batches submitted later wait for e on the device. Keep e open until it is
	// done.
	WaitEvent(ctx context.Context, e device.Event) error
}

// Recorded is a dependency on device work up to a recorded event. An EventStream waits for it on
// the device, so that the host need not wait for Done.
type Recorded interface {
	mem.Dependency
	// Precede makes batches submitted to s later wait for the work on the device, if it is not
	// done. It blocks as WaitEvent does. It returns the error of the work if that is known.
	Precede(ctx context.Context, s EventStream) error
}
