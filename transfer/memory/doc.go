// Package memory moves bytes between registered memory and sockets.
//
// A Table has regions at addresses of its own: who serves requests of other processes looks there whether what is asked for lies in
// memory that was registered, and holds it while its bytes move. A Mover moves them: host memory straight from and to its place, device
// memory through a ring of pinned chunks, of which some are copied by the device while another is on the socket.
//
// Tables and Movers are safe for concurrent use.
package memory
