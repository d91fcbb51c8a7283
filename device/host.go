package device

import "github.com/kvlane/kvlane/mem"

// StreamAdopter is a Device that keeps order between its queues and streams that the host program has on the device. The
// device has been opened in the program's process, and on CUDA in its context: the primary one, as the runtime's streams are.
//
// Once a stream of the program waits, a driver may hold up whoever allocates, frees or registers memory, opens a queue or
// loads a kernel until that wait is over. What ends the wait must need none of it: queues, memory and the words themselves
// are made ahead. An implementation has all kernels loaded when the device is open, and makes nothing in a queue's methods
// but for events beyond QueueOptions.Events.
type StreamAdopter interface {
	Device
	// AdoptStream returns the program's stream of that native handle, a CUstream; zero is its default stream. The stream
	// stays the program's, and there is nothing to give back. Safe for concurrent use. It may block while a driver makes
	// what HostStream needs, the first time on this device: adopt a stream when the program makes it.
	//
	// ErrNotSupported if the stream is capturing a graph: what is enqueued then runs when the graph does, if ever.
	// ErrInvalid if it belongs to another device or context, or is the default stream of each thread, which is nobody's
	// here. A driver cannot tell a handle that was never a stream's, nor one whose stream is destroyed: the program sees
	// to that, as long as it uses the HostStream.
	AdoptStream(handle uintptr) (HostStream, error)
	// WaitLimit is how many streams of the program may wait at a time, in the whole process, so that kernels still run on
	// others: on four of them at the same time, the program's own counted in. Package signal keeps to it. It says nothing of
	// streams with copies enqueued behind their waits, which take up queues of copy engines too.
	WaitLimit() int
}

// HostStream is a stream of the host program. Its methods enqueue behind what the program has enqueued so far, and return;
// they block only where the driver does because the stream is full. They may be called from any thread, whatever its
// context, concurrently too, and take no part in a capture of the program's. A stream that has begun to capture since it
// was adopted is refused by each with ErrNotSupported; that it does not begin during a call, the program sees to.
type HostStream interface {
	// Record returns an event that is done once what the program has enqueued so far is, for Queue.Wait: the bytes that
	// this work has written are then there for the queue's later work, and the host has waited for nothing. The event is
	// recorded when Record returns.
	Record() (Event, error)
	// WaitValue makes what the program enqueues from now on wait until the aligned 64-bit word at word, in pinned memory of
	// the device, has reached value: int64(word-value) >= 0, so that counters may wrap. What was complete on the device
	// when the word was stored is seen by the work that waited. The word must stay until an event recorded afterwards is
	// done. Package signal keeps such words. ErrNotSupported, with the reason, where the device or its driver cannot.
	WaitValue(word mem.Extent, value uint64) error
	// WriteValue stores value in the aligned 64-bit word at word, in pinned memory of the device, once what the program has enqueued
	// so far is done. The word must stay until an event recorded afterwards is done. ErrNotSupported where WaitValue is not
	// supported.
	WriteValue(word mem.Extent, value uint64) error
}
