package stream

import (
	"context"

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
	// WaitEvent makes batches submitted later wait for e on the device. e stays open until it is done.
	WaitEvent(ctx context.Context, e device.Event) error
}

// Recorded is a dependency that is work of the device up to a recorded event: an EventStream can wait for it on the device, and
// the host, which waits for Done, need not.
type Recorded interface {
	mem.Dependency
	// Precede makes batches that are submitted to s later wait for it on the device, if it is not done yet. It waits itself as
	// WaitEvent does, and returns why the work failed where that is known.
	Precede(ctx context.Context, s EventStream) error
}
