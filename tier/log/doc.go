// Package log is a tier.Tier that keeps blocks in the segments of a log on a local disk:
//
//	<dir>/kvlane.json       whose blocks these are
//	<dir>/kvlane.lock       locked by the one process that has the directory open
//	<dir>/seg-<16 hex>      segments: groups of blocks, appended by large writes
//	<dir>/index             a checkpoint of the index
//	<dir>/quarantine/       the last few images that failed their check
//
// Puts that come at the same time share a write, and by FsyncAlways a sync. A group has a header page that says what is in it, so that
// small blocks need none of their own, and everything lies at multiples of 4 KiB; docs/log-format.md has every byte. The log is its own
// write-ahead log: the index is a table in memory, and is made again from a checkpoint and from what was written after it. Nothing is
// ever written twice at one place, and a file that has gone is not used again, so that a read finds what it looks for or fails its check.
//
// Every Get verifies the block: length, identity, key and every checksum. What fails is copied to quarantine, and is a miss from then on.
//
// Segments with the least in them that is used are emptied when the bound comes near: blocks that were hit since they were written, and
// those that are retained, are moved to the end of the log, the others are evicted with their segment.
//
// Reads and writes of files do not listen to contexts while the system is at them: a call returns when memory that it was given is no
// longer touched.
package log
