// Package blocks measures a block server: a client retrieves pieces over TCP on the loopback
// interface. Client and server are in the same process.
//
// A point is a piece length and a depth, the number of requests in progress. The subjects are
// measured in interleaved rounds. They are the client with one piece per call (tcp) or all pieces
// in one call (batch), the server's memory without a connection (memory), and plain sockets that
// pipeline frames of the same length (sockets). All of them copy the same number of blocks to the
// same number of slots and compute the checksum of every piece.
package blocks
