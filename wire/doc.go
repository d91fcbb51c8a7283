// Package wire has the code that servers and clients of every protocol share at their connections.
//
// A Table has registered regions at addresses. A server looks up the bytes of a request there and
// holds their memory until it has moved them. A Mover moves the bytes: host memory directly between
// its place and the connection, device memory through pinned chunks. The device copies some chunks
// while another one is sent or received.
//
// Slots, Budget and Pace limit the connections, memory and time that the peers of a server can use.
// Slots are the connections that a server has at a time. If all are taken, a new connection
// replaces the one that has been idle for the longest time. A Budget is memory that all requests in
// progress share. A Pace is the minimum rate at which a peer must move bytes.
//
// A FrameWriter and a FrameReader move frames, of a body with a CRC and of data, over a connection:
// several frames by one vectored write, and long data straight from and into their places.
//
// All types but Lease, Pace, FrameWriter and FrameReader are safe for concurrent use.
package wire
