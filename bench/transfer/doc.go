// Package transfer measures transfers between processes. Several threads read batches of blocks
// from a target's memory, or write them to it, each one batch at a time. A Driver carries the
// batches.
//
// A point is a block size and a number of blocks per batch. Its threads run for Options.Duration.
// Their blocks are interleaved, as in Mooncake's benchmark: block i of thread t is number i x
// threads + t. The first batch of each thread opens connections and does not count. With
// Options.Check the bytes of every batch are compared: read bytes with those written before,
// written bytes with those read back. That time does not count, and wrong bytes fail the run.
package transfer
