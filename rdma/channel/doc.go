// Package channel creates, connects and stops queue pairs of one port of a NIC.
//
// # Model
//
// A Channel is a completion queue with queue pairs that complete there. Each has an Endpoint.
// Connect connects it to another Endpoint: of the same process, of another host, or its own for a
// loopback. Requests are numbered in the order of posting. Completed returns the queue pair and the
// request of a completion.
//
// Stop stops a queue pair that failed or whose requests are no longer wanted. It moves it to the
// error state, where its requests complete as flushed, and after a while to reset, where it no
// longer touches memory. Then it may be connected again.
//
// # Concurrency
//
// Wait, the queues and the fields of a channel are safe for concurrent use. Everything else is for
// one goroutine at a time. Only Wait waits for the network or for completions.
package channel
