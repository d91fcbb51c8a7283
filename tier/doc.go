// Package tier defines the interface between a store and a place that keeps blocks. tier/cache
// keeps them in pinned host memory, tier/file in files, and tier/log in a log on a local disk.
// tiertest is the conformance suite of every implementation and every decorator. tier/faulty
// injects faults.
//
// A tier speaks of whole block images (package block): a header and every shard, with their checksums. What a tier
// returns has passed those checks. A block that fails them is a miss: it is counted, set aside and never returned again.
package tier
