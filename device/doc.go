// Package device defines the interface of GPUs: memory, queues that copy and run kernels, and
// events. Implementations are device/cuda (libcuda, loaded at run time), device/sim (a simulated
// GPU) and device/host (the CPU, for engines that compute on it). devicetest is their conformance
// suite.
//
// A Queue is a stream in CUDA's terms. kvlane uses "stream" for its own streams, which are built on
// queues.
//
// All implementations and their callers must follow these rules:
//   - Methods of Device and Event are safe for concurrent use. A Queue has one user at a time.
//   - Queue methods enqueue and return; only Event.Wait and Queue.Close wait. Work of one queue
//     runs in order.
//   - Memory of enqueued work must stay allocated, and descriptors unchanged, until an event
//     recorded after the work is done.
//   - A failure of enqueued work is sticky: every later event of that queue returns it, with the
//     native cause.
//   - Errors wrap a sentinel of package errdefs, and native failures are *Error.
package device
