package device

import (
	"context"
	"time"

	"github.com/kvlane/kvlane/mem"
)

// Device is one GPU.
type Device interface {
	// Info describes the device. It does not change while the device is open.
	Info() Info
	// Alloc returns device memory with undefined contents, aligned to at least 256 bytes. The
	// region's Len is the requested number of bytes, even if the driver allocates more.
	Alloc(bytes int64, o AllocOptions) (*mem.Region, error)
	// AllocHost returns zeroed page-locked host memory with both addresses, aligned to a page.
	AllocHost(bytes int64) (*mem.Region, error)
	// RegisterHost page-locks b, which must not be Go heap memory, and returns a region over it
	// with both addresses, at the same offset within a page.
	RegisterHost(b []byte) (*mem.Region, error)
	// Free releases a region of Alloc or AllocHost, or unregisters one of RegisterHost. Freeing a
	// region twice, or a region of another device, is an error. The caller must ensure that no
	// enqueued work uses the region.
	Free(r *mem.Region) error
	// OpenQueue opens a queue, which may also implement BatchCopier and Launcher.
	OpenQueue(o QueueOptions) (Queue, error)
	// Close closes the device. If queues are open or regions are not freed, it still closes the
	// device, and returns an error with their numbers. A second Close returns nil.
	Close() error
}

// AllocOptions configures an allocation of device memory.
type AllocOptions struct {
	// Shareable memory can be exported to other processes, with a handle of type Handle.
	Shareable bool
	// Handle applies to shareable memory. Zero means a file descriptor.
	Handle HandleType
}

// QueueOptions configures a queue.
type QueueOptions struct {
	// HighPriority requests the device's highest priority.
	HighPriority bool
	// Events is the number of events that the queue creates in advance. While no more are in use,
	// Record creates none.
	Events int
}

// Queue runs copies, fills and kernels in order, asynchronously. It must have only one user at a
// time.
type Queue interface {
	// Copy enqueues one copy of src.Len == dst.Len bytes by a copy engine. Both extents need a
	// device address.
	Copy(dst, src mem.Extent) error
	// Fill enqueues a fill of dst with the byte v.
	Fill(dst mem.Extent, v byte) error
	// Record returns an event that is done once all work enqueued so far is done. The event is
	// recorded when Record returns.
	Record() (Event, error)
	// Wait makes later work of this queue wait for e, an event of any queue or of a HostStream.
	Wait(e Event) error
	// Close waits until the queue is idle and closes it. If ctx ends first, the queue and its
	// memory stay in use, and Close may be called again. A second Close after success returns nil.
	Close(ctx context.Context) error
}

// Event reports when work of a queue is done. It is safe for concurrent use, except for Close.
type Event interface {
	// Done reports whether the work is done, without waiting. The error is the work's failure. With
	// an error, done is true if the work can no longer access memory, and false if that is unknown.
	Done() (done bool, err error)
	// Wait waits until the work is done or ctx ends.
	Wait(ctx context.Context) error
	// Close releases the event. The event must not be used afterwards.
	Close()
}

// ExpectedEvent is an Event with an optional estimate of its end. A wait polls the device and
// sleeps in between. It sleeps less around the estimated time.
type ExpectedEvent interface {
	Event
	// Expect sets the estimated end of the work, for waits that begin later.
	Expect(at time.Time)
}

// BatchCopier is a Queue that copies many extents with one or a few driver calls
// (cuMemcpyBatchAsync).
type BatchCopier interface {
	Queue
	// CopyBatch enqueues the copies. If one is invalid, it enqueues none; if the driver refuses
	// some, it may have enqueued others. Copies of equal length and at equal distances on both
	// sides are fast even if they are short (cuMemcpy2DAsync). dst and src may be reused as soon as
	// CopyBatch returns.
	CopyBatch(dst, src []mem.Extent) error
}

// Launcher is a Queue that runs kvlane's kernels.
type Launcher interface {
	Queue
	// Launch enqueues k. Memory that its arguments point to must stay valid until an event recorded
	// afterwards is done.
	Launch(k *Kernel) error
}
