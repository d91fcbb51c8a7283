package kvlane

import (
	"context"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device/signal"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/inuse"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
)

// The nouns of the engine's methods, which packages block and store describe.
type (
	// Key names a block: see Engine.Key.
	Key = block.Key
	// Ref is a block, and the page of a Cache that holds or will hold it: a page of the block's page group, which its key says.
	Ref = store.Ref
	// Hit is what Engine.Lookup says of a key.
	Hit = store.Hit
	// Lease holds blocks where they are.
	Lease = store.Lease
	// DumpOptions says how a dump runs, and what it waits for.
	DumpOptions = store.DumpOptions
	// DumpTask is a running dump.
	DumpTask = store.DumpTask
	// PrefetchTask is a running prefetch.
	PrefetchTask = store.PrefetchTask
)

// LoadOptions says how a load runs.
type LoadOptions struct {
	// Before is the block before the first ref's in the prompt; zero if there is none. See
	// store.LoadOptions.Before.
	Before Key
	// Layerwise copies shard by shard, in order, so that WaitShard(0) returns while later shards are still on their way.
	Layerwise bool
	// Awaited says that streams of the program will wait for the load: HostStream.WaitLoad and WaitShard.
	Awaited bool
	// After holds what must be done before the pages are written: HostStream.Recorded, for what a stream of the program has been given so
	// far that may still touch them. See store.LoadOptions.After.
	After []mem.Dependency
}

// LoadTask is a running load: see store.LoadTask.
type LoadTask struct {
	*store.LoadTask
	signal *signal.Signal // nil: no stream may wait
	steps  int            // of signal: shards, or one
}

// Key returns the key of the block whose tokens, chained to those before them, have this hash: of the first page group where there are
// several.
func (e *Engine) Key(hash []byte) Key { return e.groups.formats.Key(0, hash) }

// GroupKey is Key for the blocks of a page group: Config.Groups[group]. The same tokens have another block in each group. ErrInvalid
// where there is no such group.
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

// Worth returns how many of a lease's blocks, from the first on, are worth loading rather than computing again, by measured times. See
// store.Store.Worth; ReportComputed tells what it cannot measure.
func (e *Engine) Worth(l *Lease, tokens int64) int { return e.store.Worth(l, tokens) }

// ReportComputed tells that the host program has computed the KV of so many tokens of a prompt in that time. Prompts of few tokens, less
// than 256, are passed over.
func (e *Engine) ReportComputed(tokens int64, took time.Duration) { e.store.Computed(tokens, took) }

// Prefetch brings blocks into the cache tier, so that a later load finds them in memory. See store.Store.Prefetch.
func (e *Engine) Prefetch(ctx context.Context, keys []Key) (*PrefetchTask, error) {
	return e.store.Prefetch(ctx, keys)
}

// Load copies each ref's block to its page of the cache, verified. A lease, where given, has to hold them all. The pages are not to be
// touched until the task is done, or with LoadOptions.Layerwise a layer of them until LoadTask.WaitShard returns for it. See
// store.Store.Load for errors and waiting. A load that is LoadOptions.Awaited waits for its turn among as many such loads, too.
func (e *Engine) Load(ctx context.Context, lease *Lease, c *Cache, refs []Ref, o LoadOptions) (*LoadTask, error) {
	u, err := c.begin(e)
	if err != nil {
		return nil, err
	}
	var ended func(context.Context) error
	defer func() { u.Started(ended) }()
	task := &LoadTask{steps: 1}
	so := store.LoadOptions{Layerwise: o.Layerwise, After: o.After, Before: o.Before}
	if o.Layerwise {
		task.steps = e.groups.shards()
	}
	if o.Awaited {
		if task.signal, err = e.hosts.take(ctx, task.steps); err != nil {
			return nil, fmt.Errorf("load %d blocks: %w", len(refs), err)
		}
		so.Progress = task.signal
	}
	if task.LoadTask, err = e.store.Load(ctx, lease, &c.pages, refs, so); err != nil {
		if task.signal != nil {
			task.signal.Set(err)
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
