// Package storage is the common part of implementations of device.Storage: the lifetime of files,
// and of queued transfers with their words. An implementation provides a Driver for its library.
//
// # The words of a transfer
//
// A library reads size and offsets of a queued transfer when the queue runs it, and writes the
// number of moved bytes when the transfer is done. These four words are a block of pinned memory
// from a pool. A block returns to the pool only when the event recorded after its transfer is done,
// even if the transfer was closed earlier. If the queue breaks before that, the block is not
// reused, and the file stays registered.
//
// # Concurrency
//
// Everything is safe for concurrent use, except that device.Transfer's Close is not, and a queue
// has one user at a time. No lock is held while a Driver moves bytes.
package storage
