// Package rail provides queue pairs and registered memory for transfers over RDMA.
//
// NICs open Domains. A Domain has one protection domain on each NIC. Only its own queues and keys
// give access to its memory. A peer that is connected to the domain of one segment cannot access
// other memory with any key.
//
// A Queue is a connected queue pair. The initiator sends Jobs: RDMA writes or reads between extents
// of registered memory and spans of the peer's memory. Jobs complete in order. The target's CPU is
// not involved. After the bytes of a write, the NIC reads one byte back from the peer. When that
// read completes, all written bytes are visible to the peer.
package rail
