// Package ibv implements package rdma with libibverbs, which it loads at run time, without cgo or
// headers. Load returns ErrNotSupported with the loader's reason if there is no library, and
// Provider.Devices if there is no device.
//
// # Lifetime of objects
//
// libibverbs frees an object even while it is in use, and does not always check for children (it
// closes a device with open queues). Therefore every object here counts its children and refuses to
// close while there are any. Each call into the library holds a shared lock of the object, and
// Close holds it exclusively. This is the only reason for holding locks during these calls; they do
// not wait for peers or completions.
//
// # Data path
//
// Requests are written to a chain outside the Go heap. Each queue has a chain of its own depth, and
// a whole slice is posted with one call. Completions are polled in the same way. Neither allocates.
// Before posting, this package checks what many providers do not: opcodes, numbers of entries, the
// length of inline payloads, and the state of the queue pair. The provider knows how full a queue
// is. Some (rdma_rxe) release the place of a request when it has been executed, not when its
// completion was polled: a full send queue then does not prevent a completion queue from
// overflowing.
//
// # Events
//
// The Go runtime's poller watches the descriptors of completion channels and asynchronous events. A
// wait occupies no thread and ends with its context. An event is acknowledged as soon as it is
// decoded, so closing an object never waits for a reader.
package ibv
