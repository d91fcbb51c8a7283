// Package tier defines the interface of tiers, which store the blocks of a store. tier/cache stores
// blocks in pinned host memory, tier/file in files, tier/log in a log on a local disk, and
// tier/remote in block servers. tiertest is the conformance suite of all implementations and
// decorators. tier/faulty injects faults.
//
// Tiers exchange whole block images (package block): a header and every shard, with checksums. A
// tier verifies the images that it returns. A block that fails verification is a miss: the tier
// counts it, moves it to quarantine and never returns it again.
package tier
