// Package rail has the queue pairs and the registered memory by which transfers go over RDMA.
//
// NICs open Domains: protection domains of their own on each NIC. What a domain has registered is reached through its own queues, with its own
// keys, and through no others: a peer that is connected to one segment's domain gets at nothing else, whatever keys it makes up.
//
// A Queue is a connected queue pair. Its initiator sends Jobs, RDMA writes or reads between extents of registered memory and spans of the
// peer's, which complete in their order. The target's side does nothing: its CPU has no part in them. A write's job is done when the peer's
// NIC has read back the last of its bytes, which it does behind all of them: they are where the peer sees them then.
package rail
