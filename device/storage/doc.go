// Package storage is what implementations of device.Storage have in common, whatever library moves the bytes: the life of
// files, and of transfers on queues with the words that belong to them. An implementation brings a Driver.
//
// # The words of a transfer
//
// A library reads size and offsets of a queued transfer when its turn has come, and writes how much it moved when it is done.
// These four words are a block of pinned memory out of a pool. A block goes back only when the event that was recorded behind
// its transfer is done, whoever has closed what by then. Where that cannot be known any more, because the queue is broken, the
// block is not used again, and the file stays registered.
//
// # Concurrency
//
// Everything is safe for concurrent use, but for device.Transfer's Close, and that a queue has one user at a time. No lock is
// held while a Driver moves bytes.
package storage
