// Package rdma is the interface to an RDMA NIC: the objects of the verbs as small Go types, for
// reliable connections. Its providers are rdma/ibv (libibverbs, loaded at run time) and rdma/soft
// (a NIC in software). rdmatest is their conformance suite. Enumerations have the values of
// <infiniband/verbs.h> and its names without IBV_.
//
// # Objects
//
// A Provider opens a Device. A Device creates protection domains (PD), completion channels and
// completion queues (CQ). A PD creates memory regions (MR), queue pairs (QP) and shared receive
// queues (SRQ). An object can be closed if nothing created from it or attached to it is open.
// Otherwise Close returns ErrBusy with the number of children and changes nothing. The order of
// closing is therefore QP, SRQ, CQ, channel, MR, PD, device, provider. Close is idempotent. Every
// other method of a closed object returns ErrClosed.
//
// # Work
//
// PostSend and PostRecv take a slice of work requests. The provider copies them and posts them as
// one chain with one doorbell. A completion is reported for every request that asked for one, for
// every receive, and for every failed request. It means that this request and all earlier ones of
// the same queue have finished. A request occupies its place in the queue until its completion, or
// a later one of the same queue, has been polled: a queue without completions stays full. A CQ that
// is full when a completion arrives is lost (EventCQErr). It must have space for every outstanding
// request of the attached queues, also those without a completion, since a failure completes all of
// them.
//
// The first failure moves the queue pair to QPSErr. Unfinished requests then complete in order with
// WCWRFlushErr, and so do later ones. Modify to QPSReset makes the queue pair like new. After a
// completion, good or bad, the caller owns the local buffers of the request again.
//
// # Concurrency
//
// All methods are safe for concurrent use, like the verbs. A chain is never mixed with another one.
// Chains of two goroutines reach a queue in the order in which PostSend took them; a caller that
// needs a certain order posts from one goroutine. PostSend, PostRecv, Poll and RequestNotify never
// wait for the network or for completions, and allocate only when they fail. The other calls may
// spend milliseconds in a system call. Only CompChannel.Wait and Device.WaitEvent wait for events;
// they take a context.
//
// # Errors
//
// Errors wrap a sentinel of package errdefs. A failed native call, or its counterpart in software,
// is an *Error with the errno. The failure of a work request is in its completion, as a *WCError.
package rdma
