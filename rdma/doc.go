// Package rdma is the interface to RDMA NICs. It defines the objects of the verbs API as Go types
// and supports reliable connections. Its providers are rdma/ibv (libibverbs, loaded at run time)
// and rdma/soft (a NIC in software). rdmatest is their conformance suite. Enumerations have the
// values of <infiniband/verbs.h> and its names without IBV_.
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
// PostSend and PostRecv post a slice of work requests as one chain with one doorbell. The provider
// copies the slice. Requests with SendSignaled, receives and failed requests cause a completion. It
// means that this request and all earlier ones of the same queue have finished. A request occupies
// a queue entry until its completion, or a later one of the same queue, is polled. A queue whose
// requests cause no completions therefore stays full. A CQ that overflows is unusable (EventCQErr).
// It needs one entry for each outstanding request of the attached queues, even for requests without
// SendSignaled, because a failure completes all of them.
//
// The first failure moves the queue pair to QPSErr. Unfinished and later requests then complete in
// order with WCWRFlushErr. Modify to QPSReset returns the queue pair to its initial state. After
// any completion, the caller owns the local buffers of the request again.
//
// # Concurrency
//
// All methods are safe for concurrent use, like the verbs. Requests of concurrent PostSend calls
// are not interleaved, but the order of the calls is undefined. A caller that needs an order must
// post from one goroutine. PostSend, PostRecv, Poll and RequestNotify never wait for the network or
// for completions, and allocate only when they fail. The other calls may spend milliseconds in a
// system call. Only CompChannel.Wait and Device.WaitEvent wait for events; they take a context.
//
// # Errors
//
// Errors wrap a sentinel of package errdefs. A failed native call, or its counterpart in software,
// is an *Error with the errno. The completion of a failed work request has the error as a *WCError.
package rdma
