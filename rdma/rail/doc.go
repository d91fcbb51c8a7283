// Package rail has the queue pairs and registered memory of transfers over RDMA.
//
// NICs open Domains. A Domain has one protection domain on each NIC. Its memory is reachable
// through its own queues with its own keys only: a peer connected to the domain of one segment
// cannot reach other memory with any key.
//
// A Queue is a connected queue pair. The initiator sends Jobs: RDMA writes or reads between extents
// of registered memory and spans of the peer's memory. Jobs complete in order. The target's CPU is
// not involved. A write is complete when the NIC has read back its last byte from the peer: all
// bytes before it are visible there by then.
package rail
