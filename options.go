package kvlane

import (
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/profile"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/stream/hoststream"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/log"
)

// The types of the engine's methods, documented in packages block and store.
type (
	// Key names a block: see Engine.Key.
	Key = block.Key
	// Ref pairs the key of a block with its page in a Cache. The key determines the page group.
	Ref = store.Ref
	// Hit is the result of Engine.Lookup for one key.
	Hit = store.Hit
	// Lease pins blocks in their tiers.
	Lease = store.Lease
	// DumpOptions are options of a dump.
	DumpOptions = store.DumpOptions
	// DumpTask is a running dump.
	DumpTask = store.DumpTask
	// LeftOut is a durable tier that did not store all blocks of a dump.
	LeftOut = store.LeftOut
	// HostStream is a stream of the host program: Engine.AdoptStream.
	HostStream = hoststream.Stream
	// PrefetchTask is a running prefetch.
	PrefetchTask = store.PrefetchTask
)

// The types of options in Config, documented in their packages.
type (
	// Geometry is the shape of a KV cache: Config.Model.
	Geometry = block.Geometry
	// Identity identifies the blocks of a model: Blocks.Identity.
	Identity = block.Identity
	// Layout divides a block into shards: Blocks.Layout.
	Layout = block.Layout
	// CopyPath is a path of copies: StreamConfig.Path.
	CopyPath = stream.Path
	// CopyPolicy controls the choice of paths: StreamConfig.Policy.
	CopyPolicy = plan.Policy
	// CopyBudget bounds interference: StreamConfig.Budget.
	CopyBudget = plan.BudgetOptions
	// Calibration defines when paths are measured: StreamConfig.Calibration.
	Calibration = profile.Calibration
	// Promotion selects the blocks that a load reads through the cache: LoadOptions.Promotion.
	Promotion = store.Promotion
	// VerifyPolicy defines when copies are verified: StoreConfig.Verify.
	VerifyPolicy = store.VerifyPolicy
	// FileFsync defines when files become durable: StoreConfig.Fsync.
	FileFsync = file.FsyncPolicy
	// LogFsync defines when writes of the log become durable: StoreConfig.LogFsync.
	LogFsync = log.FsyncPolicy
	// Hooks are functions that the store calls for events: StoreConfig.Hooks.
	Hooks = store.Hooks
	// RDMAConfig selects NICs: Config.RDMA.
	RDMAConfig = gdr.Config
	// SimOptions configures the simulated device: DeviceConfig.Sim.
	SimOptions = sim.Options
	// DevAddr is an address of device memory: CacheMemory.Planes.
	DevAddr = mem.DevAddr
	// Dependency is work that a load or dump waits for: LoadOptions.After, DumpOptions.After.
	Dependency = mem.Dependency
)

// The values of CopyPolicy.Goal and of the other options above.
const (
	CopyThroughput   = plan.Throughput
	CopyLatency      = plan.Latency
	CopyBalanced     = plan.Balanced
	CopyBackground   = plan.Background
	CalibrateOnce    = profile.Once
	CalibrateNever   = profile.Never
	PromoteSecond    = store.PromoteSecond
	PromoteAll       = store.PromoteAll
	PromoteNone      = store.PromoteNone
	VerifyDevice     = store.VerifyDevice
	VerifyAlways     = store.VerifyAlways
	VerifyFill       = store.VerifyFill
	FileFsyncNever   = file.FsyncNever
	FileFsyncFile    = file.FsyncFile
	LogFsyncInterval = log.FsyncInterval
	LogFsyncAlways   = log.FsyncAlways
	LogFsyncNever    = log.FsyncNever
)
