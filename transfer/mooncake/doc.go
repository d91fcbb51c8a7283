// Package mooncake implements both sides of the TCP transfer protocol of Mooncake's engine, so that
// kvlane's and Mooncake's processes can read and write each other's registered memory.
//
// A segment is the registered buffers of a process under one name. A Server offers a segment. It
// answers the handshake (metadata, notify, probe) on one port and moves bytes on another. A Remote
// is a segment of another process. Batches of tasks use several connections to it, each with many
// requests in progress. A Directory finds segments: at the address that is their name
// (P2PHANDSHAKE), or in an HTTP metadata server such as that of package metadata. Regions is the
// memory of a side. Host memory is moved in place, device memory through pinned chunks.
//
// The protocol has no authentication: every process that reaches the ports can read and write
// registered memory. Use it in trusted networks only. RDMA is not supported, and its handshake is
// refused. Directories in etcd or redis are not supported either.
//
// Addresses from a peer are checked against the registered buffers with arithmetic that does not
// overflow. Frames, connections and times are limited. Each connection has its own goroutine, so
// that a silent peer delays no other. A write is confirmed when its bytes are in memory. Version 2
// of the protocol has a status for that. For version 1, a Remote reads back a byte of the write on
// the same connection, whose requests are carried out in order.
//
// All types are safe for concurrent use.
package mooncake
