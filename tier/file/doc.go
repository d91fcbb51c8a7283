// Package file keeps blocks in files, one a block, in one or more directories that other processes and hosts may use at
// the same time:
//
//	<dir>/kvlane.json            whose blocks these are: identity and layout of each page group, format version, the directory's own id
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
// Blocks of several page groups lie side by side, each file as long as its own image, which follows from the key's group: bounds and
// counts are of bytes. A directory is for one set of groups.
//
// Others may write to the directory too: every name is resolved below it, no part of a name may be a link, and only regular
// files are opened (package dirfs).
//
// A Put looks at the file that is there already as a Get would: it reads and verifies it, unless this process has done so since
// the file got its time, and writes anew what is damaged or cannot be read. Under FsyncFile it returns once bytes, name and
// folders are known to be durable: it syncs a file that another process has written, and until then the block is not found.
//
// A key's directory follows from rendezvous hashing over the directories' ids, so that adding one moves only its share of
// the keys to it, and the order in which they are given does not matter.
//
// An image of another format version, as a host has that runs another build, is a miss and stays: only its being cold has it removed, at
// a bound, as any other. A Put of its block fails.
//
// Blocks are removed coldest first when the tier would outgrow its bound, over all directories but
// those that have one of their own, of which each is counted and collected by itself. Files that
// cannot be removed are passed over, counted and reported. Rounds are repeated, at longer
// intervals, while a Put waits for space. If the disk is full, the bytes that the tier holds, less
// a sixteenth, become its bound for 30 s, and tier.Stats.Paused has the cause until the disk has
// space. A tier pauses if it has no bound, if nothing can be removed, or if others take the space
// that it makes: Puts fail at once, for a second at first and half a minute at most, and then one
// tries again (tier.Stats.Paused). Retained blocks are never removed by the process that retained
// them; another process may remove them, and then a Get is a miss.
//
// A block's hotness is its file's modification time. A hit renews it, but not more often than
// Config.TouchAfter. If a store has given the tier an order (tier.OrderedTier), the times of a
// prompt's blocks are a microsecond apart. So the end is colder than the beginning, for this
// process and for others. A new block, or a used one, is a microsecond older than the block before
// it. A time in the future counts as now, and is corrected when it is read.
//
// If an open directory is removed, the next Put makes it anew with the same id. A lost marker is
// written again within a minute. A read-only tier uses a directory that was made anew.
//
// With Config.SharedBound all folders in one parent directory share its bound, one folder for each
// identity. Each folder has a usage record, kvlane.usage, which its owner renews once a minute,
// and within two seconds after it has grown by a sixteenth of the bound or has taken its share.
// Above the bound the collectors of all processes remove blocks of folders that no process has
// open, the least recently used folder first. Then each live owner evicts in proportion to its
// bytes.
//
// Get reads straight into its destination and returns only once the read has really ended, even if its context ended
// long before: a read that hangs, as on a network file system, can so never write into a buffer that was given to
// somebody else. The context is honored before and between the reads of 8 MiB or less that a Get is made of. Who cannot
// wait that long gives up on the task that runs the Get, not on the buffer.
//
// A Tier is safe for concurrent use and owns a goroutine for each bound, which counts what is there and removes what is too much;
// Close ends them and waits, until its context ends, for the operations in flight.
package file
