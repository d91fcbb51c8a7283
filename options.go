package kvlane

import (
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream/hoststream"
)

// The types of the engine's methods. Packages block and store document them.
type (
	// Key names a block: see Engine.Key.
	Key = block.Key
	// Ref pairs a block with its page in a Cache: a page of the block's page group, which follows
	// from its key.
	Ref = store.Ref
	// Hit is the result of Engine.Lookup for one key.
	Hit = store.Hit
	// Lease pins blocks in their tiers.
	Lease = store.Lease
	// DumpOptions are options of a dump.
	DumpOptions = store.DumpOptions
	// DumpTask is a running dump.
	DumpTask = store.DumpTask
	// HostStream is a stream of the host program: Engine.AdoptStream.
	HostStream = hoststream.Stream
	// PrefetchTask is a running prefetch.
	PrefetchTask = store.PrefetchTask
)
