// Package uring binds io_uring, the kernel's queues of asynchronous file I/O, by raw system calls,
// without cgo or a library. A Ring takes reads, writes and no-ops by Submit and returns their
// results by Wait.
//
// # Threads
//
// All methods of a Ring are safe for concurrent use. Wait blocks a thread in io_uring_enter, with
// one system call per wait. An eventfd read through the poller would take three and one more
// wakeup. The owner of a ring has one waiting goroutine, so it blocks one thread. That goroutine
// may also submit; a submission then waits for at most one completion.
//
// The flags SINGLE_ISSUER, DEFER_TASKRUN and COOP_TASKRUN are not used, because they need one
// thread that both submits and waits, and a goroutine is no thread. With COOP_TASKRUN a request
// would complete when its thread next enters the kernel, which a thread that runs Go code may
// delay. A request belongs to the thread that submitted it, and the end of that thread cancels it.
// Goroutines that are locked to a thread and end with it must not submit.
//
// # Memory
//
// The kernel reads and writes the memory of a request until its completion. So buffers are never
// on the Go heap, but memory of package hostmem or pinned memory of a device. They must not be
// reused or freed before Wait has returned the completion. Requests cannot be canceled; Close
// waits for those in flight.
//
// # Limits
//
// At most Options.Depth requests are in flight, which fit both queues. So the completion queue
// does not overflow. If a kernel reports an overflow nevertheless, the ring is broken, and no
// request is lost silently.
//
// Structures and constants are those of <linux/io_uring.h>; a test compares them. Linux 5.6 is the
// oldest supported kernel, the first with IORING_OP_READ.
package uring
