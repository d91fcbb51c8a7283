// Package cache is the tier in host memory. Devices can reach its slots, so a stream copies
// directly between a slot and GPU pages.
//
// A slot has the length of the longest image and holds one image. It is free, being filled, or
// ready. An open or retained block is pinned: it is neither evicted nor overwritten. A block
// becomes ready when its filler publishes the whole image. A block found corrupt leaves the index
// at once, and its slot with the last pin. A slot that hardware may still write after an aborted
// fill stays in quarantine until the hardware has stopped.
//
// Eviction is S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023).
// New blocks enter a small queue. Only those used again there reach the main queue, so a scan of
// blocks used once does not displace blocks in use. Prompts are evicted from their ends: a block
// stays while a block after it is cached and not pinned, unless nothing else can be evicted. Retain
// and the store's tier.Order give the order of blocks. If all slots are pinned, Reserve waits,
// first come, first served, until its context ends.
//
// A tier opened as a window (Config.Transient) has no eviction. It drops a block when its last pin
// ends. Stores without a cache pass their blocks through a window.
//
// A tier without memory (Config.Blocks) decides which blocks are in the slots of other processes.
//
// One mutex guards the tier. A call takes it once, for some tens of nanoseconds per block. It is
// never held during a copy, a checksum or a wait.
package cache
