// Package uring binds io_uring, the kernel's queues of asynchronous file I/O, by raw system calls: no cgo and no library. A
// Ring takes reads, writes and no-ops by Submit and gives what became of them by Wait.
//
// # Threads
//
// All methods of a Ring are safe for concurrent use. Wait blocks a thread in io_uring_enter: one system call a wait, where an eventfd
// read through the poller would take three and a wake-up more; a ring's owner has one goroutine that waits, so it is one thread. That
// goroutine may be the one that submits: what it has to submit waits for one completion at most.
//
// The flags SINGLE_ISSUER, DEFER_TASKRUN and COOP_TASKRUN are left out: they ask for one thread that both submits and waits, and a
// goroutine is no thread. With COOP_TASKRUN, what a thread submitted would be completed when that thread next enters the kernel, which
// one that runs Go code may put off. A request belongs to the thread that submitted it, whose end cancels it: goroutines that are locked to a
// thread and end with it must not submit.
//
// # Memory
//
// The kernel reads and writes the memory of a request until its completion is there, behind Go's back. So buffers are never of the Go
// heap, but of package hostmem or of a device's pinned memory, and nobody reuses or frees them before Wait has returned the
// completion. Nothing cancels a request: Close waits for what is in flight.
//
// # Bounds
//
// No more than Options.Depth requests are in flight, which both queues have room for: the submission queue is not overrun, and the
// completion queue does not overflow. Where a kernel says that it has all the same, the ring is broken rather than a request lost.
//
// Structures and constants are those of <linux/io_uring.h>, to which a test compares them. Linux 5.6 is the oldest kernel: the first
// with IORING_OP_READ.
package uring
