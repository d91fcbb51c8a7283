// Package guard bounds what the peers of a server can take from it: connections, memory and time.
//
// Slots are the connections that a server has at a time. While all are taken, the one that has been idle for the longest gives way to a new
// one. A Budget is memory that all requests under way share. A Pace is the least rate at which a peer must move bytes.
package guard
