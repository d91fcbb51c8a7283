package stream

import (
	"context"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// Stream copies batches asynchronously. All methods are safe for concurrent use.
type Stream interface {
	// Submit accepts the whole batch or nothing. While the stream is full it blocks until ctx ends;
	// the error then wraps ErrBusy and the cause of ctx.
	// ctx does not affect an accepted batch. The batch and its slices must not change until the
	// ticket resolves. An empty batch is valid and completes in order.
	Submit(ctx context.Context, b *mem.Batch) (*Ticket, error)
	// Close refuses new batches, cancels batches that have not started, waits for the others and
	// frees the stream's resources. If ctx ends first, the stream stays closing and keeps its
	// memory, and Close may be called again.
	Close(ctx context.Context) error
}

// EventStream is a Stream on a device queue. Other queues and the host program can wait for its
// batches, and its batches can wait for their events.
type EventStream interface {
	Stream
	// Record returns an event that is done when every batch submitted so far has been copied. It
	// blocks until all of them have been issued to the device, because a wait for an unrecorded
	// event would succeed at once.
	Record(ctx context.Context) (device.Event, error)
	// WaitEvent makes batches that are submitted later wait for e on the device. Keep e open until
	// it is done.
	WaitEvent(ctx context.Context, e device.Event) error
}

// Recorded is a dependency on device work up to a recorded event. An EventStream can wait for it on
// the device, so that the host need not wait for Done.
type Recorded interface {
	mem.Dependency
	// Precede makes batches that are submitted to s later wait for the work on the device, unless
	// it is done. It blocks like WaitEvent. It returns the error of the work if it is known.
	Precede(ctx context.Context, s EventStream) error
}
