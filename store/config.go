package store

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store/index"
	"github.com/kvlane/kvlane/store/load"
	"github.com/kvlane/kvlane/store/pages"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier"
)

// Config describes a store. The caller opens the tiers, and closes them after the store.
type Config struct {
	// Formats are the formats of blocks by page group. The tiers must have the same.
	Formats block.Formats
	// Layers lists, for each page group, the model's layers that its shards hold, in ascending
	// order from 0. These layers are the shards of loads and dumps. Each layer belongs to exactly
	// one group. Nil, for one group: shard k is layer k.
	Layers [][]int
	// Cache is the first tier. It needs at least two slots. In a pipeline without a cache it is the
	// window through which blocks pass (tier.TransientTier).
	Cache tier.SlotTier
	// Next holds the tiers below the cache, from fast to slow. It may be empty. A block is durable
	// when every writable tier of Next has it, except those that fail to store it
	// (DumpTask.LeftOut). Without writable tiers it is durable when the cache has published it.
	Next []tier.Tier
	// OpenLoad and OpenDump open the ordered streams for loads and dumps. They are called on first
	// use and after a stream broke. The store closes the results.
	OpenLoad, OpenDump func() (stream.Stream, error)
	// Verify selects where checksums are computed and verified. Default VerifyDevice.
	Verify VerifyPolicy
	// Readers and Writers are the numbers of goroutines that read from and write to the tiers
	// below, at most MaxWorkers. Default 16 and 4.
	Readers, Writers int
	// Checkers is the number of goroutines that compute checksums, at most MaxWorkers. Default
	// GOMAXPROCS, up to 8.
	Checkers int
	// Tasks bounds the number of loads and prefetches that run at a time, and separately the number
	// of dumps, at most MaxTasks. A dump runs until its slowest tier has stored its blocks. Further
	// tasks wait. Default 256.
	Tasks int
	// BatchBytes is the approximate size of a batch of a stream. A layerwise load is one batch of
	// any size, except for pieces of its first layer (see PartBytes). Default 1 GiB.
	BatchBytes int64
	// PartBytes is the approximate smallest size of a part of a layerwise load, and a quarter of
	// the size of a part of other tasks. Each part completes separately, and is verified or sealed
	// while later parts are copied. If the first layer of a layerwise load has at least eight times
	// as many bytes, it is copied in pieces of at least four times as many, while further blocks
	// are looked up. Default 2 MiB.
	PartBytes int64
	// RowBytes is the number of bytes of one slot that a layerwise load copies together, in
	// consecutive layers: copy engines copy long rows faster. The first step of a load is one
	// layer, and no step exceeds all earlier steps together. Zero copies each layer separately.
	RowBytes int64
	// LeaseMax is the longest duration of a lease, and the longest wait of a layerwise dump for its
	// next shard or its dependencies. Default 30 s.
	LeaseMax time.Duration
	// WaitMax is the longest wait of a block for a slot, for another task that fills the block, or
	// for space in a tier below. After that the block fails with ErrBusy. Default 30 s.
	WaitMax time.Duration
	// AdmitAlways makes all blocks worth loading: see Store.Worth.
	AdmitAlways bool
	// Direct makes loads read blocks to memory of the device: see Direct. The caller closes the
	// pool after the store. Nil: all blocks pass through the cache's slots.
	Direct *Direct
	// Clock times leases and waits. Default: the system clock.
	Clock clockwork.Clock
	// Hooks are called on events.
	Hooks Hooks
	// Tracer makes spans of operations, if it is not nil.
	Tracer Tracer
}

// The defaults of Config.
const (
	DefaultReaders    = 16 // keeps a disk busy
	DefaultWriters    = 4
	DefaultTasks      = 256
	DefaultBatchBytes = 1 << 30
	DefaultPartBytes  = 2 << 20
	DefaultLeaseMax   = index.DefaultLeaseMax
	DefaultWaitMax    = 30 * time.Second
	maxCheckers       = 8
)

// The bounds of Config.
const (
	MaxWorkers = 4096 // of Readers, of Writers and of Checkers
	MaxTasks   = 1 << 20
)

func (c *Config) setDefaults() {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Readers, DefaultReaders)
	def(&c.Writers, DefaultWriters)
	def(&c.Checkers, min(runtime.GOMAXPROCS(0), maxCheckers))
	def(&c.Tasks, DefaultTasks)
	if c.BatchBytes == 0 {
		c.BatchBytes = DefaultBatchBytes
	}
	if c.PartBytes == 0 {
		c.PartBytes = DefaultPartBytes
	}
	if c.Layers == nil && len(c.Formats) == 1 && c.Formats[0].Layout != nil {
		c.Layers = pages.OneGroup(c.Formats)
	}
	if c.LeaseMax == 0 {
		c.LeaseMax = DefaultLeaseMax
	}
	if c.WaitMax == 0 {
		c.WaitMax = DefaultWaitMax
	}
	if c.Clock == nil {
		c.Clock = clockwork.NewRealClock()
	}
}

// Validate returns every problem of the configuration. Zero values select defaults and are valid.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	formatsErr := c.Formats.Validate()
	if formatsErr == nil && (c.Layers != nil || len(c.Formats) > 1) {
		formatsErr = ValidateLayers(c.Formats, c.Layers)
	}
	if formatsErr != nil {
		errs = append(errs, fmt.Errorf("store config: %w", formatsErr))
	}
	if c.Cache == nil {
		bad("store config: no cache tier is given")
	} else if formatsErr == nil {
		sl := c.Cache.Slots()
		switch {
		case sl.Region == nil || sl.Stride < c.Formats.MaxImageBytes():
			bad("store config: the cache's slots of %d bytes are too small for blocks of %d", sl.Stride, c.Formats.MaxImageBytes())
		case slotCount(c) < 2:
			bad("store config: the cache has %d slots, at least 2 are needed", slotCount(c))
		}
	}
	if c.Cache != nil && pipeline.IsTransient(c.Cache) && len(c.Next) == 0 {
		bad("store config: the first tier is transient, and no tier is below it")
	}
	if d := c.Direct; d != nil && (d.Pool == nil || (d.Dumps == nil) != (d.HostSlot == nil || d.Heads.Region == nil) || formatsErr == nil && d.Pool.Slots().Stride < c.Formats.MaxImageBytes()) {
		bad("store config: the slots of direct storage are too small for blocks of %d bytes", c.Formats.MaxImageBytes())
	}
	for i, t := range c.Next {
		if t == nil {
			bad("store config: tier %d below the cache is nil", i+1)
		}
	}
	if c.OpenLoad == nil || c.OpenDump == nil {
		bad("store config: OpenLoad and OpenDump must be set")
	}
	if c.Verify > VerifyFill {
		bad("store config: unknown verify policy %d", c.Verify)
	}
	for _, f := range []struct {
		name    string
		v, most int64
	}{
		{"readers", int64(c.Readers), MaxWorkers},
		{"writers", int64(c.Writers), MaxWorkers},
		{"checkers", int64(c.Checkers), MaxWorkers},
		{"tasks", int64(c.Tasks), MaxTasks},
		{"batch bytes", c.BatchBytes, math.MaxInt64},
		{"part bytes", c.PartBytes, math.MaxInt64 / load.WholeParts},
		{"row bytes", c.RowBytes, math.MaxInt64},
		{"lease max", int64(c.LeaseMax), math.MaxInt64},
		{"wait max", int64(c.WaitMax), math.MaxInt64},
	} {
		switch {
		case f.v < 0:
			bad("store config: %s is %d: must not be negative", f.name, f.v)
		case f.v > f.most:
			bad("store config: %s is %d: must be at most %d", f.name, f.v, f.most)
		}
	}
	return errors.Join(errs...)
}

// slotCount returns the number of slots in the cache's memory.
func slotCount(c *Config) int64 {
	sl := c.Cache.Slots()
	return (sl.Region.Len() - sl.Base) / sl.Stride
}
