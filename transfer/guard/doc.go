// Package guard limits the connections, memory and time that the peers of a server can use.
//
// Slots are the connections that a server has at a time. If all are taken, a new connection
// replaces the one that has been idle for the longest time. A Budget is memory that all requests in
// progress share. A Pace is the minimum rate at which a peer must move bytes.
package guard
