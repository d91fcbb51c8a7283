// Package uring binds io_uring, the kernel's interface for asynchronous file I/O. It uses system
// calls directly, without cgo or a library. Submit passes reads, writes and no-ops to a Ring, and
// Wait returns their results.
//
// # Threads
//
// All methods of a Ring are safe for concurrent use. Wait blocks a thread in io_uring_enter, with
// one system call per wait. An eventfd with the Go poller would need three system calls and one
// more wakeup. A ring should have one waiting goroutine, so it blocks one thread. That goroutine
// may also submit; then a submission waits for at most one completion.
//
// The flags SINGLE_ISSUER, DEFER_TASKRUN and COOP_TASKRUN are not used, because they require that
// one thread both submits and waits, and a goroutine may change threads. With COOP_TASKRUN a
// request would complete when its thread next enters the kernel, which a thread that runs Go code
// may delay. When a thread ends, the kernel cancels the requests that it submitted. Therefore a
// goroutine that is locked to a thread and ends with it must not submit.
//
// # Memory
//
// The kernel accesses the memory of a request until its completion. Therefore buffers must be
// outside the Go heap: memory of package hostmem, or pinned memory of a device. They must not be
// reused or freed before Wait has returned the completion. Requests cannot be canceled; Close waits
// for those in flight.
//
// # Limits
//
// At most Options.Depth requests are in flight, so the completion queue cannot overflow. If the
// kernel reports an overflow, the ring is marked as broken.
//
// Structures and constants are those of <linux/io_uring.h>; a test compares them. Linux 5.6 is the
// oldest supported kernel, the first with IORING_OP_READ.
package uring
