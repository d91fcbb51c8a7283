// Package store keeps KV-cache blocks in a pipeline of tiers and copies them to and from GPU pages.
// The pipeline is a cache of pinned slots with zero or more tiers below it ("cache", "cache|file|log"),
// or other tiers alone ("file"): then blocks pass through slots that keep nothing
// (tier.TransientTier). The store runs in the process of the host program and in that process's
// device context.
//
// Package store/index knows where blocks are, and holds the leases that keep them there. It knows
// no device. The other packages below store each have one stage of the work:
//
//   - pages: the pages of a task, and the layers of a model as shards of blocks
//   - pipeline: reserving slots, and reading blocks from the tiers
//   - batch: copying between pages and slots, and check jobs
//   - load, dump: the tasks
//   - task, pool, stat: results and bounds of tasks, goroutines, figures
//
// # Model
//
// A block is absent, filling, ready or failed in each tier. Only ready is a hit. A Lease pins the
// longest ready prefix of some keys, each block in its tier.
//
// A Load copies blocks to pages. Blocks in the cache are copied at once by one batch. A layerwise
// load of many blocks starts with batches of the first layer, while it looks up the last blocks.
// Other blocks are read into slots by a bounded pool of readers, and copied in batches as they
// arrive.
//
// A Dump copies pages to slots: then the source is free. The slots are summed, sealed and published
// in the cache, and written to every tier below while pinned: then the blocks are durable. A tier
// that is full or fails is left out. A load that reads a block from a tier below fills the cache
// only: blocks do not move between the tiers below. A lease pins a block in one tier.
//
// A batch consists of parts, which complete one after the other. A part is a layer of all blocks of
// the batch, or some whole blocks. The stream reports each completed part (mem.Paged.Completed),
// and the part is checked while later parts are copied.
//
// An error concerns one block. The other blocks of the task go on. A block that fails its check is
// a miss: it is dropped from the tier that had it, counted, reported to Hooks.Corrupt, and read
// from the next tier below.
//
// The blocks of a hybrid model belong to several page groups (block.Formats). All use the same
// tiers and slots, which have the size of the largest block. A task may have blocks of all groups:
// a batch then has page groups of mem for each. The shards of a task are the model's layers, over
// all groups. A block has those of its group.
//
// # Integrity
//
// The header of a block has a checksum for each shard. Under VerifyDevice, the default, streams are
// asked to sum the bytes that they copy (mem.Paged.Sums). If they do (stream.Completion.Summed), no
// other pass over the bytes is needed:
//
//   - The checksums of a dump are those of the bytes that the copy read from the pages. If bytes
//     change on the way to the slot, the slot does not match its header: the tier below refuses
//     it and the dump fails. Without a tier below, the first load detects it. If a path uses
//     staging memory, the sums are those of the kernel that gathers the bytes.
//   - A load compares the sums of the bytes that the copy wrote to the pages with the checksums
//     that the cache has kept since the block became ready (tier.Slot.Sums). This detects damage
//     of the slot's shards at rest, on the bus and in staging memory. Loads do not read the
//     header in the slot. Until the comparison no block and no shard is reported. If a copy
//     fails its check, the CPU verifies the slot. A corrupt slot is dropped, and the block is
//     read again from below. If the slot is right, the copy was wrong: that is counted apart
//     (Stats.BadCopies, Hooks.BadCopy). In both cases the block is copied again, at most three
//     times in all, and only the shards that were not reported. Then it fails with ErrCorrupt,
//     and its page is undefined (BlockError.Undefined).
//
// A load under VerifyDevice whose copies are summed reads blocks from a tier below without
// verifying them (tier.Reader). Such a block is verified on its page, as a block of the cache.
// Until then its fill is open, and lookups do not return it. If a shard is wrong the fill is
// aborted and the block is read again. The tier then verifies it, and sets a corrupt copy aside.
//
// If a path computes no sums (copy engines), the CPU sums the slots of a dump after the copy, and
// verifies the slots of a load while later parts are copied. This detects damage at rest, but not
// in the copy. The same holds for blocks with checksums of block.SumXXH3, which are verified before
// their copy.
//
// Under VerifyAlways the CPU checks every slot in addition: before a load copies it, and after a
// dump has filled it, against the sums of the copy. Without such sums, and for planes that are no
// whole leaves, the slots of a load are verified before and after the copy. VerifyFill checks dumps
// in the same way and loads not at all: it detects damage in the tiers below only. No policy
// detects changes of a page before a dump has read it or after a load has written it.
//
// # A released page is quiescent
//
// Load and Dump report a block, good or bad, only after the stream has reported its part as
// completed or its ticket has resolved. Then its page and slot are no longer accessed. Cancel stops
// the work that has not been submitted and waits for the rest. Slots of a canceled dump are in
// quarantine until the hardware no longer accesses them.
//
// # Why every wait ends
//
// Tasks wait for slots. A slot is held in one of two ways:
//
//   - While the client decides: by leases, by layerwise dumps that wait for a shard or its
//     dependencies, and by dumps that wait on the device for recorded work of the client
//     (stream.Recorded). Leases hold at most five eighths of the slots and never wait for one.
//     Beyond that they pin the copy in the tier below, or end the prefix. Such dumps hold at
//     most a quarter, and acquire the slots of a whole chunk at once while they hold none. When
//     all layers have come, or the work is done, the slots of the dump are of the other kind,
//     and the rest of it is copied as whole dumps are. All end by a deadline of at most
//     Config.LeaseMax, so that a dead client releases its slots, unless a device waits. A device
//     may write to the slots when its wait ends. They stay in quarantine until then, as do those
//     of later dumps in the same stream.
//   - While the hardware works: by copies, checksums and writes to the tiers below. Their holder
//     never waits for a slot, for another task's fill, for a dependency, or for a pool that
//     does. A task waits for the first slot of a group while it holds none, and takes others
//     only if they are free. It waits for blocks that other tasks fill when it holds no slots.
//     The host waits for dependencies before slots are taken, with the exceptions above. The
//     queues of the pools never block. Readers wait for a slot and hold none.
//
// At least an eighth of the slots (one, of two) is therefore released by the hardware alone, and
// every wait for a slot succeeds. As a precaution each wait for a slot or for another task's fill
// ends after Config.WaitMax with ErrBusy for that block.
//
// # Concurrency
//
// All methods are safe for concurrent use. Each task's state belongs to one goroutine at a time.
// Config.Tasks bounds the tasks. Three pools of fixed size read from tiers, compute checksums and
// write to tiers. No lock is held during I/O, driver calls or hooks. Close stops every goroutine.
package store
