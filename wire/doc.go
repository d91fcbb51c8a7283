// Package wire contains code for connections that the servers and clients of all protocols share.
//
// A Table maps addresses to registered regions. A server looks up the memory of a request there and
// keeps it registered until the bytes have moved. A Mover moves the bytes: host memory directly to
// or from the connection, device memory through pinned chunks. The device copies some chunks while
// another one is sent or received.
//
// Slots, Budget and Pace limit the connections, memory and time that the peers of a server can use.
// Slots limits the number of connections. If all are in use, a new connection replaces the one that
// has been idle for the longest time. A Budget limits the memory of all requests in progress. A
// Pace is the minimum rate at which a peer must move bytes.
//
// A FrameWriter and a FrameReader transfer frames, which consist of a body with a CRC and of data,
// over a connection. They send several frames by one vectored write, and long data without copying.
//
// All types except Lease, Pace, FrameWriter and FrameReader are safe for concurrent use.
package wire
