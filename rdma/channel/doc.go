// Package channel creates, connects and stops queue pairs of one port of a NIC.
//
// # Model
//
// A Channel has one completion queue and several queue pairs that use it. Each queue pair has an
// Endpoint. Connect connects it to the Endpoint of another queue pair, on this or another host, or
// to its own Endpoint for a loopback. Requests are numbered in the order of posting. Completed
// returns the queue pair and the request of a completion.
//
// Stop stops a queue pair after a failure or to cancel its requests. It moves the queue pair to the
// error state, where its requests complete as flushed. After a delay it resets the queue pair,
// which then no longer accesses memory and can be connected again.
//
// # Concurrency
//
// Wait, the queues and the fields of a channel are safe for concurrent use. All other methods must
// be called by one goroutine at a time. Only Wait blocks on the network or on completions.
package channel
