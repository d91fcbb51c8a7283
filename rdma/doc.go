// Package rdma is what kvlane asks of an RDMA NIC: the objects of the verbs as small Go types, for reliable connections.
// Providers: rdma/ibv (libibverbs, found at run time) and rdma/soft (a NIC in software). rdmatest is their conformance
// suite. Numbers are the verbs' own: enumerations have the values of <infiniband/verbs.h> and the names without IBV_.
//
// # Objects
//
// A Provider opens a Device. A Device makes protection domains (PD), completion channels and completion queues (CQ); a PD
// makes memory regions (MR), queue pairs (QP) and shared receive queues (SRQ). An object can be closed when nothing made
// of it or attached to it is open; until then Close answers ErrBusy with the number of children, and changes nothing. So
// the order of closing is QP, SRQ, CQ, channel, MR, PD, device, provider. Close is idempotent; every other method of a
// closed object answers ErrClosed.
//
// # Work
//
// PostSend and PostRecv take a slice of work requests, which the provider copies and posts as one chain with one doorbell.
// A completion is reported for every request that asked for one, for every receive, and for every request that failed;
// it says that this request and all before it on the same queue have finished. A request occupies its place in the queue
// until the completion of itself, or of a later one of the same queue, has been polled: whoever never asks for a
// completion fills the queue for good. A CQ that is full when a completion arrives is lost (EventCQErr): it must have room
// for every request that is outstanding on the queues attached to it, asked for or not, since failures complete them all.
//
// The first failure moves the queue pair to QPSErr. Requests that were posted and had not finished then complete, in
// order, with WCWRFlushErr, as do those that are posted later. Modify to QPSReset makes the queue pair as new.
// A completion, good or bad, means that the local buffers of its request are the caller's again.
//
// # Concurrency
//
// All methods are safe for concurrent use, as all verbs are; a chain is never mixed with another. The order in which two
// goroutines' chains reach one queue is the order in which PostSend took them, so a caller who cares posts from one
// goroutine. PostSend, PostRecv, Poll and RequestNotify never wait for the network or for completions, and allocate
// nothing unless they fail. The rest are control calls that may take milliseconds, in a system call. Only
// CompChannel.Wait and Device.WaitEvent wait for something to happen, and take a context.
//
// # Errors
//
// Errors wrap a sentinel of package errdefs. What a native call or its software counterpart refused is an *Error with the
// errno; how a work request failed is in its completion, as a *WCError.
package rdma
