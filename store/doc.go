// Package store keeps KV-cache blocks in a pipeline of tiers and moves them to and from GPU pages: a cache of pinned slots,
// and zero or more tiers below it ("cache", "cache|file"), or tiers alone, to and from which blocks pass through slots that keep
// nothing ("file"; tier.TransientTier). It is embedded: it runs in the process of its user and in
// that process's device context.
//
// Where blocks are, and the leases that keep them there, is package index, which knows no device. A Store has one and moves the
// bytes: it asks its index and begins loads under its leases, and the index knows nothing of it.
//
// # Model
//
// A block is absent, filling, ready or failed in each tier; only ready is a hit. A Lease pins the longest ready prefix of
// some keys, each block in the tier where it lies. A Load brings blocks to pages: what is in the cache is checked and
// copied at once by one batch (of a load by layers with many blocks the first layer goes ahead, by batches of its own, while the last
// blocks are looked up), what lies below is read into slots by a bounded pool of readers, checked, and copied in batches as it
// arrives. A batch consists of parts, which land one after the other: a layer of all its blocks, or some whole blocks. The stream tells
// of each that has landed (mem.Paged.Landed), which is checked while the rest is copied. A Dump brings pages to blocks: pages are copied to slots (then the source is free), the slots are summed and
// sealed, published in the cache, and written to every tier below while pinned (then the block is durable).
//
// An error concerns one block; the others of the task go on. A block that fails its check is a miss: it is dropped from
// the tier that had it, counted, reported to Hooks.Corrupt, and read again from the tier below if there is one.
//
// The blocks of a hybrid model are of several page groups (block.Formats), in the same tiers and slots, which are as long as the
// longest. A task may have blocks of all of them: each batch has a page group of mem for each. The shards of tasks are the model's
// layers, over all groups, and a block has those of its group.
//
// # Integrity
//
// Every shard has a checksum in its block's header. Under VerifyDevice, the default, the streams are asked to sum what they
// copy (mem.Paged.Sums), and where they do (stream.Completion.Summed) nobody else has to pass over the bytes:
//
//   - A dump's checksums are those of the bytes that the copier read from the pages. If they change on their way to the slot,
//     the slot does not agree with its own header: the tier below refuses it, and the dump says so; without one, the first
//     load finds it. Where the way leads through staging memory, it begins with what the gathering kernel has read.
//   - A load's shards are verified by the sums of the bytes that the copier wrote to the pages, against the checksums that the
//     cache has kept since the block became ready (tier.Slot.Sums). So damage that is done to the slot's shards at rest is found,
//     and damage done on the way, on the bus and in staging memory. The header in the slot is read by whoever writes the block
//     down, not by loads.
//     Until then no block is reported good, nor any shard of it (WaitShard). If a copy fails its check, the CPU verifies the
//     slot. A wrong slot is dropped and read anew from below. A right one means that the transfer was wrong, which is counted
//     apart (Stats.BadCopies, Hooks.BadCopy). Either way the block is copied again, at most three times in all, and only
//     those shards of it that nobody has been told of. A block that is still wrong then fails with ErrCorrupt, and its error
//     says that its page is undefined (BlockError.Undefined).
//
// What a load under VerifyDevice reads from a tier below, the tier need not sum (tier.Reader) if the stream is asked to: the
// block is verified where it arrives, like one of the cache, and is a fill until then, which nobody else finds. If a shard is
// wrong the fill ends, and the block is read again, verified, by the tier that sets it aside if it is at fault.
//
// Where a path takes no sums (the copy engines), the CPU sums a dump's slot after the copy, and verifies a load's slot beside
// the copy of what follows: damage at rest is found, damage by the transfer is not. The same holds for blocks whose checksums
// are block.SumXXH3, which are verified before they are copied.
//
// VerifyAlways does all that, and has the CPU look at every slot besides: before a load copies it, and after a dump has filled
// it, against the sums of the pages where the path took them. Where it took none, and for planes that are not whole leaves, the
// slots of a load are verified before the copy and after it. VerifyFill checks dumps like that, and loads not at all: it finds
// damage in tiers below only.
// Nothing here finds what happens to a page before a dump has read it or after a load has written it.
//
// # Released means quiesced
//
// Neither Load nor Dump reports a block, good or bad, before the stream has said that it has landed, or its ticket has resolved,
// which is when nothing can touch its page or its slot any more. Cancel stops what has not been issued and then waits like everybody
// else. Slots of a canceled dump go to quarantine until the hardware is done with them.
//
// # Why nothing waits for ever
//
// Slots are the resource that everybody waits for. Slots are held in two ways:
//
//   - At the client's pleasure: by leases, by layerwise dumps while a shard, or what it has to come after, is not there, and by
//     dumps that wait on the device for recorded work of the client (stream.Recorded). Leases hold at most five eighths of the slots and take them without waiting (beyond it they pin the copy in the tier
//     below, or end the prefix). Such dumps hold at most a quarter, and take those of a whole chunk at once while they
//     hold none. Once every layer has come, or the work is done, what such a dump holds is of the other sort, and the rest of it is copied as
//     whole dumps are. All end by a deadline of at most Config.LeaseMax: a dead client gives back what it held, where a device does
//     not wait for it. What a device waits for, it may write to when the wait ends: those slots stay in quarantine until then,
//     and so do those of dumps that were put into the same stream behind it.
//   - For as long as the hardware takes: by copies, checksums and writes to the tiers below. Their holder never waits
//     for a slot, for another's fill, for a dependency or for a pool that does: the first slot of a chunk is waited for
//     while holding none, further ones are taken only if free; blocks that another is filling are put off until the
//     task holds nothing; dependencies are waited for on the host before slots are taken (but for layerwise dumps, whose
//     slots are of the other sort, and for recorded work that the stream waits for); queues in front of the pools never block; readers wait for a slot, and hold none.
//
// So at least an eighth of the slots (one, of two) comes back by the progress of hardware alone, and whoever waits for a slot
// gets one. Each wait for a slot or for another's fill ends after Config.WaitMax all the same, with ErrBusy for that block
// alone.
//
// # Concurrency
//
// All methods are safe for concurrent use. Each task's state belongs to one goroutine at a time; Config.Tasks bounds tasks. Three pools of fixed size read from tiers, compute checksums, and write to tiers. No lock is held across I/O, driver
// calls or hooks. Close joins every goroutine.
package store
