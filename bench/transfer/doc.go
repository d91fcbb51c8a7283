// Package transfer measures transfers between processes: batches of blocks that several threads read from a target's memory, or write to
// it, each thread a batch at a time, by whatever Driver carries them.
//
// A point is a block size and a number of blocks of a batch. Its threads go on for as long as Options.Duration says, each in blocks of its own, which lie
// between those of the others, in the order of the field's benchmark: block i of thread t is number i x threads + t. A first batch of each thread opens
// what has to be opened, and does not count. With Options.Check every batch's bytes are compared: what was read with what was written before, what was written
// with what is read again. That time does not count either, and a run with wrong bytes fails.
package transfer
