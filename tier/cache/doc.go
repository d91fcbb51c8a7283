// Package cache is the tier that keeps blocks in slots of host memory which devices can reach, so that a stream copies
// straight between a slot and GPU pages.
//
// A slot is as long as the longest image of the page groups, holds one image, and is free, being filled, or ready. What was opened or retained is pinned and is neither
// evicted nor rewritten. A block becomes ready only when who fills its slot publishes it, whole;
// a block found corrupt leaves the index at once, its slot once unpinned.
// A slot that hardware may still write after its filling was given up stays out of use until the hardware has stopped.
//
// Room is made by S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP
// 2023): new blocks pass through a small queue, and only those used again there reach the main one,
// so that a scan of blocks used once cannot displace those in use. Prompts are evicted from their
// ends: a block stays while a block after it is cached and not pinned, unless nothing else can be
// evicted. Retain and the store's tier.Order give the order of blocks. A Reserve that finds
// every slot pinned waits in line, first come, first served, until its context ends.
//
// A tier that is opened as a window (Config.Transient) has no policy: a block is there while somebody fills it or has it pinned, and
// forgotten with its last pin. Pipelines without a cache have one, through which their blocks pass.
//
// A tier without memory (Config.Blocks) knows which blocks are in slots of other processes, and which makes room for which.
//
// One mutex guards all of it. A call takes it once, however many blocks it is about, for some tens of nanoseconds a block, never
// over a copy, a checksum or a wait. Blocks are found by a table of cells of 8 bytes, whose keys are in the slots' entries.
package cache
