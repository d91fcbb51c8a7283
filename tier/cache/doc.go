// Package cache is the tier in host memory. Devices can access its slots, so that streams copy
// directly between slots and GPU pages.
//
// A slot has the length of the longest image and holds one image. It is free, being filled, or
// ready. An open or retained block is pinned: it is neither evicted nor overwritten. A block
// becomes ready when its filler publishes the whole image. A corrupt block leaves the index at
// once, and its slot with the last pin. If hardware may still write to the slot of an aborted fill,
// the slot stays in quarantine until the hardware has stopped.
//
// Eviction is S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023).
// New blocks enter a small queue. Only blocks that are used again there enter the main queue, so
// that a scan of blocks that are used once does not displace blocks in use. Prompts are evicted
// from their ends: a block stays while a cached block after it is not pinned, unless nothing else
// can be evicted. Retain and the store's tier.Order define the order of blocks. If all slots are
// pinned, Reserve waits, first come, first served, until its context ends.
//
// A tier opened as a window (Config.Transient) has no eviction. It drops a block when its last pin
// ends. Stores without a cache copy their blocks through a window.
//
// A tier without memory (Config.Blocks) decides which blocks are in the slots of other processes.
//
// One mutex guards the tier. A call locks it once, for some tens of nanoseconds per block. It is
// never held during a copy, a checksum or a wait.
package cache
