// Package ibv implements package rdma with libibverbs. It loads the library at run time and needs
// neither cgo nor headers. Without the library, Load returns ErrNotSupported with the loader's
// error. Without a device, Provider.Devices returns ErrNotSupported.
//
// # Lifetime of objects
//
// libibverbs frees an object even if it is in use, and does not always check for children: it
// closes a device with open queues. Therefore every object of this package counts its children and
// returns ErrBusy from Close while it has any. Each call into the library holds a shared lock of
// the object, and Close holds it exclusively. These calls do not wait for peers or completions, so
// the locks are held for a short time only.
//
// # Data path
//
// Requests are written to a chain outside the Go heap. Each queue has a chain of the queue's depth,
// and one call posts a whole slice. Completions are polled in the same way. Posting and polling do
// not allocate. Before posting, this package checks properties that many providers do not check:
// opcodes, numbers of entries, the length of inline payloads, and the state of the queue pair. The
// provider enforces the queue depth. Some providers (rdma_rxe) free an entry when the request was
// executed, not when its completion is polled. With these, a full send queue does not prevent a
// completion queue from overflowing.
//
// # Events
//
// The Go runtime's poller watches the descriptors of completion channels and asynchronous events. A
// wait occupies no thread and ends with its context. An event is acknowledged as soon as it is
// decoded, so that closing an object never waits for a reader.
package ibv
