// Package log is the tier that stores blocks in the segments of a log on a local disk:
//
//	<dir>/kvlane.json       the marker
//	<dir>/kvlane.lock       locked by the process that has the directory open
//	<dir>/seg-<16 hex>      segments: groups of blocks, appended by large writes
//	<dir>/index             a checkpoint of the index
//	<dir>/kvlane.pins       the list of pinned blocks
//	<dir>/quarantine/       the last images that failed a check
//
// Concurrent Puts share a write, and with FsyncAlways a sync. The header of a group describes its
// blocks, so that small blocks need no separate headers. Headers and blocks are aligned to 4 KiB.
// See docs/log-format.md.
//
// The log needs no separate write-ahead log. The index is a table in memory. Opening restores it
// from a checkpoint and from the groups that were written after it. Written bytes are never
// overwritten, and the number of a removed file is not used again. Therefore a read finds its block
// or fails its check.
//
// Every Get verifies the block: length, identity, key and every checksum. A block that fails is
// copied to quarantine and is a miss.
//
// Near the bound, the segments with the least recently used blocks are emptied. Recently used,
// retained and pinned blocks move to the end of the log. The others are evicted with their segment.
//
// Running reads and writes ignore the end of their contexts: a call returns only after the last
// access to its memory.
package log
