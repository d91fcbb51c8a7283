// Package blocks measures a block server: retrieves of pieces by a client, over TCP on the loopback
// interface, both in this process.
//
// A point is a piece length and a depth, the number of requests in progress. Each subject is measured
// in interleaved rounds: the client and its server, with one piece a call (tcp) or all of them in
// one call (batch), the server's memory without a connection (memory), and bare sockets that
// pipeline frames of the same bytes (sockets). All of them move the same number of blocks to the
// same number of slots, and sum every piece there.
package blocks
