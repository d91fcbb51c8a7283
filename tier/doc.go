// Package tier defines the interface between a store and a place that stores blocks. tier/cache
// stores blocks in pinned host memory, tier/file in files, and tier/log in a log on a local disk.
// tiertest is the conformance suite of all implementations and decorators. tier/faulty injects
// faults.
//
// Tiers exchange whole block images (package block): a header and every shard, with checksums. A
// tier verifies the images that it returns. A block that fails is a miss: it is counted, set aside
// and never returned again.
package tier
