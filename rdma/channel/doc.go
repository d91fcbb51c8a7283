// Package channel makes connected queue pairs over one port of a NIC, and ends them.
//
// # Model
//
// A Channel is a completion queue with queue pairs that complete there. Each is known to others by its Endpoint, and Connect takes
// another's: of the same process, of a host that sent it by other means, or its own for a loopback. Requests are numbered as
// they are posted; a completion says how far a queue pair has come, and Completed tells which one and which request.
//
// A queue pair that failed, or that shall give up what is outstanding, is ended by Stop: to the error state, where its requests
// complete as flushed, and after a while to reset, when nothing of it touches memory any more. It may be connected again then.
//
// # Concurrency
//
// Wait, queues and what describes a channel are safe for concurrent use; everything else is for one goroutine at a time.
// Nothing but Wait waits for the network or for completions.
package channel
