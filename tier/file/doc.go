// Package file keeps blocks in files, one a block, in one or more directories that other processes and hosts may use at
// the same time:
//
//	<dir>/kvlane.json            whose blocks these are: identity, layout, format version, the directory's own id
//	<dir>/kvlane.lock            held while a process opens the directory
//	<dir>/<2 hex>/<64 hex>       a block's image, named by its key
//	<dir>/tmp/<session>/         images being written; <session>/lock is held by whoever writes there
//	<dir>/quarantine/            the last few images that failed their check
//
// An image is written under a temporary name, synced as the policy says, and renamed: a block's name only ever shows
// whole images. What a process leaves behind when it is killed, its session's folder, is removed by the next that opens
// the directory, which knows by the lock that the owner is dead. Reads check size, identity, key and every checksum; what
// fails is moved to quarantine and is a miss from then on.
//
// A key's directory follows from rendezvous hashing over the directories' ids, so that adding one moves only its share of
// the keys to it, and the order in which they are given does not matter.
//
// Blocks are removed coldest first, over all directories, when the tier would outgrow its bound. A block's hotness is its
// file's modification time, which a hit renews, though not more often than Config.TouchAfter. Retained blocks are never
// removed by the process that retained them; another process may remove them, and then a Get is a miss.
//
// Get reads straight into its destination and returns only once the read has really ended, even if its context ended
// long before: a read that hangs, as on a network file system, can so never write into a buffer that was given to
// somebody else. The context is honored before and between the reads of 8 MiB or less that a Get is made of. Who cannot
// wait that long gives up on the task that runs the Get, not on the buffer.
//
// A Tier is safe for concurrent use and owns one goroutine, which counts what is there and removes what is too much;
// Close ends it and waits for the operations in flight.
package file
