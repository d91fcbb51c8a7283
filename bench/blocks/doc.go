// Package blocks measures a block server: a client retrieves pieces over TCP on the loopback
// interface. Client and server are in the same process.
//
// A point is a piece length and a depth, the number of requests in progress. The subjects are
// measured in interleaved rounds. They are the client with one piece per call (tcp) or all pieces
// in one call (batch), the server's memory without a connection (memory), and plain sockets that
// pipeline frames of the same length (sockets). All of them copy the same number of blocks to the
// same number of slots and compute the checksum of every piece.
//
// With a Fabric a second client of the same blocks uses RDMA: to pinned memory (rdma), and to
// device memory (device) for pieces of at least blockio.MinDeviceBytes. The sum of a piece in
// device memory is that of a copy in pinned memory.
package blocks
