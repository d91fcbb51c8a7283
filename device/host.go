package device

import "github.com/kvlane/kvlane/mem"

// StreamAdopter is a Device that orders its queues relative to streams of the host program. The
// device must be open in the program's process. On CUDA it uses the primary context, like the
// runtime's streams.
//
// While a stream of the program waits, a driver may block calls that allocate, free or register
// memory, open a queue or load a kernel. Work that ends the wait must not need such calls: queues,
// memory and the words themselves are allocated in advance. An implementation loads all kernels
// when the device is opened, and allocates nothing in a queue's methods except events beyond
// QueueOptions.Events.
type StreamAdopter interface {
	Device
	// AdoptStream returns the program's stream with this native handle, a CUstream. Zero is the
	// default stream. The program still owns the stream, and the result needs no release. It is
	// safe for concurrent use. The first call on a device may block while the driver allocates, so
	// adopt a stream when the program creates it.
	//
	// AdoptStream returns ErrNotSupported if the stream is capturing a graph, because enqueued work
	// then runs only with the graph. It returns ErrInvalid if the stream belongs to another device
	// or context, or is the per-thread default stream. A driver cannot detect an invalid handle or
	// a destroyed stream. The program must keep the stream as long as it uses the HostStream.
	AdoptStream(handle uintptr) (HostStream, error)
	// WaitLimit returns the number of streams of the program that may wait at a time, in the whole
	// process. Up to this number, kernels can still run on four other streams at the same time,
	// including the program's own. Package signal enforces it. The limit does not take into account
	// copies that are enqueued behind waits, which also occupy queues of copy engines.
	WaitLimit() int
}

// HostStream is a stream of the host program. Its methods enqueue work after the program's work and
// return. They block only if the stream is full and the driver blocks. They are safe for concurrent
// use from any thread, in any context, and take no part in the program's graph captures. If the
// stream has begun a capture since its adoption, each method returns ErrNotSupported. The program
// must not begin a capture during a call.
type HostStream interface {
	// Record returns an event, for Queue.Wait, that is done once the program's work enqueued so far
	// is done. The bytes that this work has written are then visible to the queue's later work,
	// without a wait on the host. The event is recorded when Record returns.
	Record() (Event, error)
	// WaitValue makes later work of the program wait until the aligned 64-bit word at word has
	// reached value: int64(word-value) >= 0, so that counters may wrap. The word is in pinned
	// memory of the device, and must stay valid until an event recorded afterwards is done. Package
	// signal manages such words. The waiting work sees everything that was complete on the device
	// when the word was stored. WaitValue returns ErrNotSupported with the reason if the device or
	// its driver does not support waits.
	WaitValue(word mem.Extent, value uint64) error
	// WriteValue stores value in the aligned 64-bit word at word once the program's work enqueued
	// so far is done. The word is in pinned memory of the device, and must stay valid until an
	// event recorded afterwards is done. WriteValue returns ErrNotSupported if WaitValue does.
	WriteValue(word mem.Extent, value uint64) error
}
