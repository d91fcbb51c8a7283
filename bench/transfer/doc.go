// Package transfer measures transfers between processes. Several threads read or write batches of
// blocks in a target's memory. Each thread has one batch in progress. A Driver executes the
// batches.
//
// A point is a block size and a number of blocks per batch. Its threads run for Options.Duration.
// Their blocks are interleaved, as in Mooncake's benchmark: block i of thread t is number i x
// threads + t. The first batch of each thread opens connections and is not counted. With
// Options.Check, the bytes of every batch are verified. This time is not counted, and wrong bytes
// fail the run.
package transfer
