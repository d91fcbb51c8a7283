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
	// Before is the key of the block that precedes the first ref's block in the prompt, or zero.
	// See store.LoadOptions.Before.
	Before Key
	// Layerwise copies the shards in order, so that WaitShard(0) returns while later shards are
	// still being copied.
	Layerwise bool
	// Awaited must be set if streams of the program will wait for the load by HostStream.WaitLoad
	// or WaitShard.
	Awaited bool
	// After lists dependencies that must complete before the pages are written, for example
	// HostStream.Recorded for earlier work of a stream that may still access the pages. See
	// store.LoadOptions.After.
	After []mem.Dependency
	// Promotion selects the blocks that a load reads through the cache. Workers of a Manager set
	// PromoteNone for a Job with Direct, and PromoteAll for other jobs.
	Promotion Promotion
}

// LoadTask is a running load. See store.LoadTask.
type LoadTask struct {
	*store.LoadTask
	hoststream.Load // zero without LoadOptions.Awaited
}

// Key returns the key of the block whose tokens, with all tokens before them, have this hash. With
// several page groups it is a key of the first group.
func (e *Engine) Key(hash []byte) Key { return e.groups.formats.Key(0, hash) }

// GroupKey is Key for a page group, Config.Groups[group]. The same tokens have a different block in
// each group. It returns ErrInvalid if the group does not exist.
func (e *Engine) GroupKey(group int, hash []byte) (Key, error) {
	if n := len(e.groups.formats); group < 0 || group >= n {
		return Key{}, fmt.Errorf("make a key of page group %d of %d: %w", group, n, errdefs.ErrInvalid)
	}
	return e.groups.formats.Key(group, hash), nil
}

// Lookup returns the tier of each key's block. Unlike LeasePrefix it does not pin the blocks. See
// store.Store.Lookup.
func (e *Engine) Lookup(ctx context.Context, keys []Key) ([]Hit, error) {
	return e.store.Lookup(ctx, keys)
}

// SetAnchors records the anchors of blocks. The tier "remote" places a block by its anchor: the key
// of the first block of its run of 64 blocks, counted from the start of the prompt. LeasePrefix
// records the anchors of a whole prompt. Call SetAnchors before calls with blocks of the middle of a
// prompt, if no such lease precedes and Before does not name a recorded block. Without the tier it
// has no effect. It returns ErrInvalid if the lists have different lengths.
func (e *Engine) SetAnchors(keys, anchors []Key) error { return e.store.SetAnchors(keys, anchors) }

// LeasePrefix pins the longest prefix of keys whose blocks are all stored, for ttl or until
// Lease.Release. The keys are in the order of a prompt. See store.Store.LeasePrefix.
func (e *Engine) LeasePrefix(ctx context.Context, keys []Key, ttl time.Duration) (*Lease, error) {
	return e.store.LeasePrefix(ctx, keys, ttl)
}

// Worth returns the number of the lease's first blocks that are faster to load than to compute, by
// measured times. tokens is the number of tokens of all its blocks, and rest the number that the
// host program computes in any case. ReportComputed and ReportDelay supply the times of the host
// program. See store.Store.Worth.
func (e *Engine) Worth(l *Lease, tokens, rest int64) int { return e.store.Worth(l, tokens, rest) }

// ReportComputed reports the time that the host program took to compute the KV of a number of
// prompt tokens. Reports of 256 tokens or more give the time per token. Smaller ones give the least
// time of a step.
func (e *Engine) ReportComputed(tokens int64, took time.Duration) { e.store.Computed(tokens, took) }

// ReportDelay reports the time from the decision to load blocks that are in memory to their use,
// without the duration of the load (LoadTask.Elapsed). It may be zero.
func (e *Engine) ReportDelay(delay time.Duration) { e.store.Delayed(delay) }

// Prefetch reads blocks into the cache tier, for later loads. See store.Store.Prefetch.
func (e *Engine) Prefetch(ctx context.Context, keys []Key) (*PrefetchTask, error) {
	return e.store.Prefetch(ctx, keys)
}

// Load copies the block of each ref to its page of the cache, and verifies it. A lease, if not nil,
// must pin all the blocks. The pages must not be accessed until the task is done. With
// LoadOptions.Layerwise, a layer of the pages may be accessed after LoadTask.WaitShard has returned
// for it. A load with LoadOptions.Awaited also waits for earlier loads of that kind. See
// store.Store.Load for errors and waiting.
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

// Dump stores the page of each ref as a block. The refs are in the order of a prompt, whose last
// block is evicted first. DumpOptions.Before (see store.DumpOptions) is the key of the block before
// refs[0]. Do not change the pages until DumpTask.SourceFree has returned. With
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
