// Package device is what kvlane asks of a GPU: memory, queues that copy and run kernels, events. Implementations:
// device/cuda (libcuda, found at run time), device/sim (a GPU in software) and device/host (the CPU, for engines that compute
// there). devicetest is their conformance suite.
//
// A Queue is what CUDA calls a stream; kvlane keeps "stream" for its own, which are built on queues.
//
// What every implementation must hold to:
//   - Methods of Device and Event are safe for concurrent use. A Queue has one user at a time.
//   - Queue methods enqueue and return; only Event.Wait and Queue.Close wait. Work of one queue runs in order.
//   - Memory named by enqueued work must stay allocated, and descriptors unchanged, until an event recorded after it is done.
//   - A failure of enqueued work is sticky: it is the error of every later event of that queue, with the native cause.
//   - Errors wrap a sentinel of package errdefs, and native failures are *Error.
package device
