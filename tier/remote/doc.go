// Package remote is the tier of blocks in block servers (package blockio). Several hosts share the
// memory and disks of the servers.
//
// A run of blocks is in one server, which weighted rendezvous hashing of the run's anchor chooses
// (Placement). Each server has a connection, a breaker and counters of its own. Every request has a
// deadline. A server that is slow or gone causes misses of Lookup, Retain and Get, and errors of
// Put and Delete. The breaker of such a server then refuses requests, except for probes.
//
// Put returns when the server has the block in memory. The server decides when to write it to disk
// and when to evict it.
package remote
