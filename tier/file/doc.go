// Package file is the tier that stores each block in a file. Other processes and hosts may use its
// directories at the same time:
//
//	<dir>/kvlane.json            the marker: identities, layouts, format version and the directory's id
//	<dir>/kvlane.lock            locked while a process opens the directory
//	<dir>/<2 hex>/<64 hex>       the image of a block, named by its key
//	<dir>/kvlane.removed[.old]   the removal log: the last removals of blocks with their causes
//	<dir>/tmp/<session>/         images being written; their writer locks <session>/lock
//	<dir>/kvlane.pins            the list of pinned blocks
//	<dir>/quarantine/            the last images that failed a check
//
// An image is written to a temporary file, synced if the policy requires it, and renamed. A file
// with a block's name is therefore always complete. The next process that opens the directory
// removes the sessions of killed processes, whose locks are free. Reads check size, identity, key
// and every checksum. A file that fails a check is moved to quarantine, and the read is a miss.
//
// Blocks of all page groups are in the same folders. The group in the key determines the length of
// a file. Bounds and counts are in bytes. All users of a directory have the same set of groups.
//
// Other users may write to the directory too. Every name is resolved below it, no part of a name
// may be a link, and only regular files are opened (package dirfs).
//
// If the file of a block exists, a Put checks it as a Get does, unless this process has checked it
// since its modification time last changed. It replaces a damaged or unreadable file. Under
// FsyncFile a Put returns when bytes, name and folders are durable, also for a file that another
// process has written. Lookups find the block only then.
//
// The directory of a key is chosen by rendezvous hashing over the ids of the directories. If a
// directory is added, only its share of the keys moves to it. The order of the directories does not
// matter.
//
// An image of another format version, from a host with another build, is a miss and stays. Only
// eviction removes it. A Put of its block fails.
//
// At the bound the coldest blocks of all directories are evicted. A directory with its own bound is
// counted and evicted separately. Files that cannot be removed are skipped, counted and reported.
// Rounds are repeated, at increasing intervals, while a Put waits for space. If the disk is full,
// the tier's bytes less a sixteenth become its bound for 30 s, and tier.Stats.Paused has the cause
// until the disk has space. Writes pause if the tier has no bound, if nothing can be removed, or if
// other programs take the freed space. Then Puts fail at once, for a second at first and half a
// minute at most, before one tries again. A process never evicts blocks that it has retained.
// Another process may evict them, and then a Get is a miss.
//
// Pinned blocks are neither evicted nor removed until Unpin, by no process. The list of them
// changes under the directory's lock. Every process reads a changed list before its next eviction.
//
// The modification time of a file is the last use of its block. A hit renews it, at most once per
// Config.TouchAfter. If a store has set an order (tier.OrderedTier), each block of a prompt gets a
// time one microsecond before that of the preceding block, when it is written and when it is used.
// All processes then evict the end of a prompt before its beginning. A time in the future counts as
// now, and is corrected when it is read.
//
// If an open directory is removed, the next Put makes it again with the same id. A lost marker is
// written again within a minute. A read-only tier switches to a directory that was made again.
//
// With Config.SharedBound all folders in one parent directory share its bound, one folder for each
// identity. Each folder has a usage record, kvlane.usage, which its owner renews once a minute, and
// within two seconds after it has grown by a sixteenth of the bound or has taken its share. Above
// the bound the collectors of all processes remove blocks of folders that no process has open, the
// least recently used folder first. Then each live owner evicts in proportion to its bytes.
//
// Get reads directly into its destination. It returns only when the read has ended, even if its
// context ended long before, because a hanging read, as on a network file system, could otherwise
// write into a buffer that has a new owner. The context is checked before and between reads of at
// most 8 MiB. A caller that cannot wait that long may abandon the goroutine of the Get, but not the
// buffer.
//
// A Tier is safe for concurrent use. It has a goroutine for each bound, which counts and evicts
// blocks. Close ends them and waits, until its context ends, for operations in progress.
package file
