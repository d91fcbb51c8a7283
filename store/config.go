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
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier"
)

// Config describes a store. The tiers belong to who opened them and are closed by them, after the store.
type Config struct {
	// Formats are those of the blocks, one a page group. The tiers must have been opened with the same.
	Formats block.Formats
	// Layers are the layers of the model that the shards of each group's blocks are, ascending, from 0: the shards of loads and
	// dumps, over all groups. Each layer is one group's, and none is missing. Nil, for one group: shard k is layer k.
	Layers [][]int
	// Cache is the first tier; it needs two slots at least. Of a pipeline without a cache it is the window through which blocks pass
	// (tier.TransientTier).
	Cache tier.SlotTier
	// Next holds the tiers below, first to last; may be empty. A block is durable when every one of them that is not read-only
	// has it, or, without any such, when the cache has published it.
	Next []tier.Tier
	// OpenLoad and OpenDump open the ordered streams for loads and dumps. They are called when a stream is first needed
	// and again after one broke. The store closes what they return.
	OpenLoad, OpenDump func() (stream.Stream, error)
	// Verify says where and when checksums are made and verified. Default VerifyDevice.
	Verify VerifyPolicy
	// Readers and Writers are the goroutines that read from and write to the tiers below, MaxWorkers at most each. Default 16 and 4.
	Readers, Writers int
	// Checkers are the goroutines that compute checksums, MaxWorkers at most. Default: GOMAXPROCS, at most 8.
	Checkers int
	// Tasks is how many loads and prefetches may run at the same time, and how many dumps, which end when the slowest tier has them: MaxTasks at
	// most each; further ones wait. Default 256.
	Tasks int
	// BatchBytes is about how many bytes go into one batch of a stream. A load by layers is one batch whatever its length,
	// but for pieces of its first layer (see PartBytes). Default 1 GiB.
	BatchBytes int64
	// PartBytes is about how many bytes of a load by layers are told of together at least, of others up to four times as many: so
	// much is verified, or sealed, while the rest is copied. A load by layers whose first
	// layer has eight times as many bytes or more copies that layer in pieces of about four times as many, later longer ones, while the
	// other blocks are looked up. Default 2 MiB.
	PartBytes int64
	// RowBytes is how many bytes of a slot a load by layers has copied together, in layers that follow each other: copy engines carry the
	// same part of slots that lie side by side as rows, and longer ones faster. It begins with a layer, and has no more come
	// together than came before. Zero: each layer by itself.
	RowBytes int64
	// LeaseMax is the longest a lease may live, and how long a layerwise dump waits for its next shard, and for what that has
	// to come after. Default 30 s.
	LeaseMax time.Duration
	// WaitMax is how long a block waits for a slot, for another's fill, or for room in a tier below, before it fails with
	// ErrBusy. Default 30 s.
	WaitMax time.Duration
	// AdmitAlways makes all blocks worth loading, whatever that takes: see Store.Worth.
	AdmitAlways bool
	// Clock times leases and waits. Default: the real one.
	Clock clockwork.Clock
	// Hooks are told what happens inside.
	Hooks Hooks
}

// Defaults of Config.
const (
	DefaultReaders    = 16 // as many reads as keep a disk busy
	DefaultWriters    = 4
	DefaultTasks      = 256
	DefaultBatchBytes = 1 << 30
	DefaultPartBytes  = 2 << 20
	DefaultLeaseMax   = index.DefaultLeaseMax
	DefaultWaitMax    = 30 * time.Second
	maxCheckers       = 8
)

// Bounds of Config.
const (
	MaxWorkers = 4096 // Readers, Writers and Checkers, each
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
		c.Layers = onlyLayers(c.Formats)
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

// Validate reports every problem of the configuration at once. Zero stands for the default and is valid.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	formatsErr := c.Formats.Validate()
	if formatsErr == nil && (c.Layers != nil || len(c.Formats) > 1) {
		_, formatsErr = locate(c.Formats, c.Layers)
	}
	if formatsErr != nil {
		errs = append(errs, fmt.Errorf("store config: %w", formatsErr))
	}
	if c.Cache == nil {
		bad("store config: there is no cache tier")
	} else if formatsErr == nil {
		sl := c.Cache.Slots()
		switch {
		case sl.Region == nil || sl.Stride < c.Formats.MaxImageBytes():
			bad("store config: the cache's slots of %d bytes are too small for blocks of %d", sl.Stride, c.Formats.MaxImageBytes())
		case slotCount(c) < 2:
			bad("store config: the cache has %d slots and needs 2 at least", slotCount(c))
		}
	}
	if c.Cache != nil && passing(c.Cache) && len(c.Next) == 0 {
		bad("store config: the first tier keeps nothing, and there is no tier below it")
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
		{"part bytes", c.PartBytes, math.MaxInt64 / wholeParts},
		{"row bytes", c.RowBytes, math.MaxInt64},
		{"lease max", int64(c.LeaseMax), math.MaxInt64},
		{"wait max", int64(c.WaitMax), math.MaxInt64},
	} {
		switch {
		case f.v < 0:
			bad("store config: %s is %d and must not be negative", f.name, f.v)
		case f.v > f.most:
			bad("store config: %s is %d and must be %d at most", f.name, f.v, f.most)
		}
	}
	return errors.Join(errs...)
}

// passing says whether a tier is a window, in which blocks stay only while they are used.
func passing(t tier.SlotTier) bool {
	w, able := t.(tier.TransientTier)
	return able && w.Transient()
}

// slotCount is the number of slots that the cache's array has room for.
func slotCount(c *Config) int64 {
	sl := c.Cache.Slots()
	return (sl.Region.Len() - sl.Base) / sl.Stride
}
