// Package store keeps KV-cache blocks in a pipeline of tiers and copies them to and from GPU pages.
// The pipeline is a cache of pinned slots with zero or more tiers below it, such as "cache" or
// "cache|file|log". It may also lack the cache ("file"): blocks then pass through temporary slots
// (tier.TransientTier). The store runs in the process of the host program and uses that process's
// device context.
//
// Package store/index records which tiers hold which blocks, and the leases that keep them there.
// It does not depend on devices. Each other package below store implements one stage of the work:
//
//   - pages: the pages of a task, and the shards of a block for each layer of the model
//   - pipeline: reservation of slots, and reads of blocks from the tiers
//   - batch: copies between pages and slots, and the checks of their bytes
//   - load, dump: the tasks
//   - task, pool, stat: results and limits of tasks, pools of goroutines, statistics
//
// # Model
//
// In each tier a block is absent, filling, ready or failed. Lookups find only ready blocks. A Lease
// takes a list of keys and pins its longest prefix of ready blocks, each block in one tier.
//
// A Load copies blocks to pages. Blocks in the cache are copied immediately in one batch. A
// layerwise load of many blocks starts with batches of the first layer, while it looks up the last
// blocks. Blocks in other tiers are read into slots by a bounded pool of readers, and copied in
// batches as they arrive.
//
// A Dump copies pages to slots. The host program can then reuse the pages. The store computes the
// checksums of the slots, seals them and publishes them in the cache. It keeps them pinned while
// they are written to every tier below. Then the blocks are durable. A tier that is full or fails
// is skipped. A load that reads a block from a lower tier fills the cache only: blocks do not move
// between the tiers below the cache.
//
// A batch consists of parts, which complete in order. A part is one layer of all blocks of the
// batch, or some whole blocks. The stream reports each completed part (mem.Paged.Completed), and
// the part is checked while later parts are copied.
//
// An error affects one block. The other blocks of the task continue. A block that fails its check
// is dropped from its tier, counted, reported to Hooks.Corrupt, and read from the next tier below.
//
// The blocks of a hybrid model belong to several page groups (block.Formats). All groups use the
// same tiers, and slots of the size of the largest block. A task may have blocks of several groups.
// Its batches then have page groups of mem for each of them. The shards of a task are all layers of
// the model. A block has only the shards of its group.
//
// # Integrity
//
// The header of a block contains a checksum for each shard. Under VerifyDevice, the default, the
// store requests that streams compute checksums of the bytes that they copy (mem.Paged.Sums). If
// a stream does (stream.Completion.Summed), no other pass over the bytes is needed:
//
//   - A dump uses the checksums of the bytes that the copy read from the pages. If bytes change on
//     the way to the slot, the slot does not match its header: the tier below refuses it and the
//     dump fails. Without a tier below, the first load detects the change. If a path uses staging
//     memory, the kernel that gathers the bytes computes the checksums.
//   - A load compares the checksums of the bytes that the copy wrote to the pages with those that
//     the cache has kept since the block became ready (tier.Slot.Sums). This detects damage of the
//     slot's shards in memory, on the bus and in staging memory. Loads do not read the header in
//     the slot. Blocks and shards are reported only after the comparison.
//   - If the checksums of a load differ, the CPU verifies the slot. A corrupt slot is dropped, and
//     the block is read again from a lower tier. If the slot is correct, the copy was wrong, which
//     is counted separately (Stats.BadCopies, Hooks.BadCopy). In both cases the shards that were
//     not reported are copied again. After three copies the block fails with ErrCorrupt, and its
//     page is undefined (BlockError.Undefined).
//
// A load under VerifyDevice whose streams compute checksums reads blocks from a lower tier without
// verifying them (tier.Reader). Such a block is verified on its page, like a block of the cache.
// Until then it is filling in the cache, and lookups do not find it there. If a shard is wrong the
// fill is aborted and the block is read again. This time the tier verifies it, and quarantines a
// corrupt image.
//
// If a path computes no checksums (copy engines), the CPU computes those of a dump from the slots
// after the copy, and verifies the slots of a load while later parts are copied. This detects
// damage of stored bytes, but not errors of the copy. The same holds for blocks with checksums of
// block.SumXXH3, whose slots are verified before the copy.
//
// Under VerifyAlways the CPU also checks every slot: before a load copies it, and after a dump has
// filled it, against the checksums of the copy. If the copy computes none, or planes are not whole
// leaves, the slots of a load are verified before and after the copy. VerifyFill checks dumps in
// the same way but does not check loads, so that it detects only damage in the lower tiers. No
// policy detects changes of a page before a dump has read it or after a load has written it.
//
// # Reported pages are not accessed
//
// Load and Dump report the result of a block only after the stream has reported its part as
// completed or its ticket has resolved. Then its page and slot are no longer accessed. Cancel
// prevents work that has not been submitted and waits for the rest. Slots of a canceled dump are in
// quarantine until the hardware no longer accesses them.
//
// # Why every wait ends
//
// Tasks wait for slots. A slot in use is released either by the host program or by the hardware:
//
//   - The host program releases the slots of leases, of layerwise dumps that wait for a shard or
//     its dependencies, and of dumps that wait on the device for recorded work of the program
//     (stream.Recorded). Leases use at most five eighths of the slots and never wait for a slot.
//     Above that bound they pin the copy in a lower tier, or end the prefix. These dumps use at
//     most a quarter of the slots, and acquire the slots of a whole chunk together while they hold
//     none. When all layers have been submitted, or the recorded work is done, the dump continues
//     like any other and the hardware releases its slots. Leases and waiting dumps end at a
//     deadline of at most Config.LeaseMax, even if the program hangs. The exception is a wait on
//     the device: the device may write to the slots when its wait ends. They stay in quarantine
//     until then, as do those of later dumps in the same stream.
//   - The hardware releases the slots of copies, checksums and writes to the lower tiers. A task
//     that holds such slots never waits for a slot, for a fill of another task, for a dependency,
//     or for a pool that does. A task waits for the first slot of a group while it holds none, and
//     takes further slots only if they are free. It waits for blocks that other tasks fill only
//     while it holds no slots. With the exceptions above, the host waits for dependencies before
//     it acquires slots. Adding work to a pool's queue never blocks. Readers wait for a slot while
//     they hold none.
//
// Therefore at least an eighth of the slots, or one of two, is released by the hardware alone, and
// every wait for a slot ends. As a precaution each wait for a slot or for a fill of another task
// ends after Config.WaitMax with ErrBusy for that block.
//
// # Concurrency
//
// All methods are safe for concurrent use. The state of a task is used by one goroutine at a time.
// Config.Tasks limits the number of tasks. Three pools of fixed size read from tiers, compute
// checksums and write to tiers. No lock is held during I/O, driver calls or hooks. Close stops
// every goroutine.
package store
