package kvlane

import (
	"context"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/inuse"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream/hoststream"
)

// LoadOptions are options of a load.
type LoadOptions struct {
	// Before is the block before the first ref's in the prompt; zero if there is none. See
	// store.LoadOptions.Before.
	Before Key
	// Layerwise copies shard by shard, in order, so that WaitShard(0) returns while later shards
	// are being copied.
	Layerwise bool
	// Awaited is set if streams of the program will wait for the load: HostStream.WaitLoad and
	// WaitShard.
	Awaited bool
	// After holds dependencies that must resolve before the pages are written: HostStream.Recorded,
	// for earlier work of a stream of the program that may still access them. See
	// store.LoadOptions.After.
	After []mem.Dependency
	// Promotion selects the blocks that a load reads through the cache. Workers of a Manager set
	// PromoteNone for a Job with Direct, and PromoteAll for other jobs.
	Promotion Promotion
}

// LoadTask is a running load: see store.LoadTask.
type LoadTask struct {
	*store.LoadTask
	hoststream.Load // zero without LoadOptions.Awaited
}

// Key returns the key of the block whose tokens, and all tokens before them, have this hash. With
// several page groups it is the key of the first group.
func (e *Engine) Key(hash []byte) Key { return e.groups.formats.Key(0, hash) }

// GroupKey is Key for a page group, Config.Groups[group]. The same tokens have another block in
// each group. It returns ErrInvalid if the group does not exist.
func (e *Engine) GroupKey(group int, hash []byte) (Key, error) {
	if n := len(e.groups.formats); group < 0 || group >= n {
		return Key{}, fmt.Errorf("make a key of page group %d of %d: %w", group, n, errdefs.ErrInvalid)
	}
	return e.groups.formats.Key(group, hash), nil
}

// Lookup returns the place of each key's block. It pins nothing; LeasePrefix does. See
// store.Store.Lookup.
func (e *Engine) Lookup(ctx context.Context, keys []Key) ([]Hit, error) {
	return e.store.Lookup(ctx, keys)
}

// LeasePrefix pins the longest prefix of keys whose blocks are all stored, for ttl or until
// Lease.Release. keys are in the order of a prompt. See store.Store.LeasePrefix.
func (e *Engine) LeasePrefix(ctx context.Context, keys []Key, ttl time.Duration) (*Lease, error) {
	return e.store.LeasePrefix(ctx, keys, ttl)
}

// Worth returns how many of a lease's blocks, from the first, are worth loading rather than
// computing, by measured times. See store.Store.Worth. ReportComputed and ReportDelay report the
// times of the host program.
func (e *Engine) Worth(l *Lease, tokens int64) int { return e.store.Worth(l, tokens) }

// ReportComputed reports the time in which the host program has computed the KV of a number of
// tokens of a prompt. Less than 256 tokens measure the fixed time of computing.
func (e *Engine) ReportComputed(tokens int64, took time.Duration) { e.store.Computed(tokens, took) }

// ReportDelay reports the time from the decision to load blocks in memory to their use, less the
// load's own duration (LoadTask.Elapsed). It may be zero.
func (e *Engine) ReportDelay(delay time.Duration) { e.store.Delayed(delay) }

// Prefetch reads blocks into the cache tier, so that a later load finds them in memory. See
// store.Store.Prefetch.
func (e *Engine) Prefetch(ctx context.Context, keys []Key) (*PrefetchTask, error) {
	return e.store.Prefetch(ctx, keys)
}

// Load copies each ref's block to its page of the cache, verified. A lease, if not nil, must pin
// them all. The pages must not be accessed until the task is done, or with LoadOptions.Layerwise a
// layer of them until LoadTask.WaitShard returns for it. A load with LoadOptions.Awaited also waits
// for its turn among such loads. See store.Store.Load for errors and waiting.
func (e *Engine) Load(ctx context.Context, lease *Lease, c *Cache, refs []Ref, o LoadOptions) (*LoadTask, error) {
	u, err := c.begin(e)
	if err != nil {
		return nil, err
	}
	var ended func(context.Context) error
	defer func() { u.Started(ended) }()
	task := &LoadTask{}
	so := store.LoadOptions{Layerwise: o.Layerwise, After: o.After, Before: o.Before, Promotion: o.Promotion}
	if o.Awaited {
		if task.Load, so.Progress, err = e.hosts.NewLoad(ctx, o.Layerwise); err != nil {
			return nil, fmt.Errorf("load %d blocks: %w", len(refs), err)
		}
	}
	if task.LoadTask, err = e.store.Load(ctx, lease, &c.pages, refs, so); err != nil {
		if so.Progress != nil {
			so.Progress.Set(err)
		}
		return nil, err
	}
	ended = func(ctx context.Context) error { return inuse.Wait(ctx, task.Done()) }
	return task, nil
}

// Dump stores each ref's block from its page of the cache. refs are in the order of a prompt; the
// last block is evicted first. DumpOptions.Before (see store.DumpOptions) is the key of the block
// before refs[0]. Do not change the pages until DumpTask.SourceFree returns. With
// DumpOptions.Layerwise, Dump reads a layer after DumpTask.SubmitShard was called for it. See
// store.Store.Dump for errors and waiting.
func (e *Engine) Dump(ctx context.Context, c *Cache, refs []Ref, o DumpOptions) (*DumpTask, error) {
	u, err := c.begin(e)
	if err != nil {
		return nil, err
	}
	task, err := e.store.Dump(ctx, &c.pages, refs, o)
	if err != nil {
		u.Started(nil)
		return nil, err
	}
	u.Started(task.SourceFree)
	return task, nil
}
