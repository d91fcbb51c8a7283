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
	// Alloc returns bytes of device memory, contents undefined, aligned to 256 bytes at least. The region may be longer
	// than asked for only inside the driver: Len is what was asked.
	Alloc(bytes int64, o AllocOptions) (*mem.Region, error)
	// AllocHost returns bytes of page-locked host memory with both addresses, zeroed, aligned to a page.
	AllocHost(bytes int64) (*mem.Region, error)
	// RegisterHost page-locks b, which must not be Go heap memory, and returns a region over it with both addresses.
	RegisterHost(b []byte) (*mem.Region, error)
	// Free releases a region of Alloc or AllocHost, or unregisters one of RegisterHost. Freeing twice, or a region of
	// another device, is an error. The caller has made sure that no enqueued work still uses it.
	Free(r *mem.Region) error
	// OpenQueue opens a queue. It may also implement BatchCopier and Launcher.
	OpenQueue(o QueueOptions) (Queue, error)
	// Close closes the device. Open queues or regions not freed are reported as an error that counts them; the device is
	// closed all the same. A second Close returns nil.
	Close() error
}

// AllocOptions says how device memory is made.
type AllocOptions struct {
	// Shareable memory is made to be exported to other processes, by a handle of the type that Handle says.
	Shareable bool
	// Handle counts for shareable memory. Zero: a file descriptor.
	Handle HandleType
}

// QueueOptions says how a queue is opened.
type QueueOptions struct {
	// HighPriority asks for the highest priority that the device has.
	HighPriority bool
	// Events is how many events of queues are made ahead: Record makes no other while no more than that are in use.
	Events int
}

// Queue runs copies, fills and kernels in order, asynchronously. One user at a time.
type Queue interface {
	// Copy enqueues one copy of src.Len == dst.Len bytes by a copy engine. Both extents need a device address.
	Copy(dst, src mem.Extent) error
	// Fill enqueues setting every byte of dst to v.
	Fill(dst mem.Extent, v byte) error
	// Record returns an event that is done once everything enqueued so far is. It is recorded when Record returns.
	Record() (Event, error)
	// Wait makes later work of this queue wait for e, which may be of another queue or of a HostStream.
	Wait(e Event) error
	// Close waits until the queue is idle and closes it. If ctx ends first the queue stays open, its memory stays in
	// use, and Close may be called again. A second Close after success returns nil.
	Close(ctx context.Context) error
}

// Event tells when work of a queue is done. Safe for concurrent use, but for Close.
type Event interface {
	// Done reports whether the work is done, without waiting. The error is why the work failed; then done is true if
	// nothing can still touch the memory, and false if the queue cannot know.
	Done() (done bool, err error)
	// Wait waits until the work is done or ctx ends.
	Wait(ctx context.Context) error
	// Close gives the event back. The event must not be used afterwards.
	Close()
}

// ExpectedEvent is an Event that can be told when it will be done, as far as anybody knows. Who waits sleeps between his
// looks at the device, and so little around that time that he is not late.
type ExpectedEvent interface {
	Event
	// Expect says when the work should be done. It is for waits that begin afterwards.
	Expect(at time.Time)
}

// BatchCopier is a Queue whose driver takes many copies in one call (cuMemcpyBatchAsync), or in few.
type BatchCopier interface {
	Queue
	// CopyBatch enqueues the copies: none where one is invalid, maybe some where the driver refuses others. Those of one length, each as far behind
	// the one before as that is behind the one before it, on either side, are fast however short they are (cuMemcpy2DAsync). dst and
	// src may be reused as soon as it returns.
	CopyBatch(dst, src []mem.Extent) error
}

// Launcher is a Queue that runs kvlane's kernels.
type Launcher interface {
	Queue
	// Launch enqueues k. Memory that its arguments point at must stay until an event recorded afterwards is done.
	Launch(k *Kernel) error
}
