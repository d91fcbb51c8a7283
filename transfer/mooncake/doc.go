// Package mooncake implements both sides of the TCP transfer protocol of Mooncake's engine, so that
// kvlane's and Mooncake's processes can read and write each other's registered memory.
//
// A segment is a named set of registered buffers of one process. A Server serves a segment. It
// handles handshake requests (metadata, notify, probe) on one port and data on another. A Remote is
// a segment of another process. Batches of tasks use several connections to it, each with many
// requests in progress. A Directory finds segments: their name is an address (P2PHANDSHAKE), or an
// HTTP metadata server such as that of package metadata lists them. Regions is the registered
// memory of one process. Device memory is copied through pinned chunks.
//
// The protocol has no authentication: every process that can connect to the ports can read and
// write registered memory. Use it in trusted networks only. RDMA is not supported, and its
// handshake is refused. Directories in etcd or redis are not supported either.
//
// Addresses from a peer are checked against the registered buffers with arithmetic that does not
// overflow. Frames, connections and times are limited. Each connection has its own goroutine, so
// that a slow peer does not delay others. A write completes when its bytes are in the target's
// memory. Version 2 of the protocol confirms that with a status. For version 1, a Remote reads back
// one byte of the write on the same connection, which executes requests in order.
//
// All types are safe for concurrent use.
package mooncake
