// Package ibv implements package rdma on libibverbs, which it finds at run time: no cgo, no headers. Load answers
// ErrNotSupported with the loader's reason where there is no library, and Provider.Devices where there is no device.
//
// # Life of objects
//
// libibverbs frees an object whatever else is going on with it, and some of its checks are missing (closing a device with
// queues on it "works"). So every object here counts what was made of it and refuses to close before, and holds a lock,
// shared, during each call into the library, which its Close holds alone. That is the one reason why locks are held
// across those calls; they wait for no peer and no completion.
//
// # The data path
//
// Requests are written to a chain outside of the Go heap, one for each queue, as deep as the queue, and go down with one call
// for a whole slice. Polling moves completions up in the same way. Neither allocates. What many providers do not check is
// checked here before anything is posted: opcodes, numbers of entries, length of inline payloads, the queue pair's state.
// How full a queue is, the provider knows. Some (rdma_rxe) give a request's place back once it has been executed, not
// when its completion was polled: a full send queue does not keep its owner from overflowing a completion queue.
//
// # Events
//
// The descriptors of completion channels and of asynchronous events are watched by the Go runtime's poller, so that
// waiting takes no thread and ends with its context. An event is acknowledged as soon as it was read and understood:
// closing an object never waits for a reader.
package ibv
