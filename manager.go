package kvlane

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/unwind"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/store/manager"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/cache"
	"github.com/kvlane/kvlane/tier/file"
)

// The nouns of a Manager's methods, which package manager describes.
type (
	// Block names a block as the inference engine does.
	Block = manager.Block
	// BlockState is where a block stands: see manager.State.
	BlockState = manager.State
	// Job is something that all workers do for some blocks.
	Job = manager.Job
)

// Manager is the index of the blocks that Engines in other processes have, for an inference engine whose scheduler and workers are
// processes of their own: see package manager. It has no device, and moves nothing. All methods are safe for concurrent use.
type Manager struct {
	*manager.Manager
	closers  unwind.Stack
	exporter *exporter
}

// ManagerConfig describes a Manager.
type ManagerConfig struct {
	// Ranks are the configurations of the workers' Engines, all of one pipeline: "cache", or "cache|file", whose directories the
	// Manager opens too. Workers whose blocks are the same, and in the same directories, may be named once.
	Ranks []Config `config:"ranks"`
	// Blocks is how many blocks each worker's cache may be given, at most as many as the smallest has slots for. Zero: as many as the
	// smallest has slots for, but for a sixteenth, which is left to blocks that have been evicted and are still being written to files.
	Blocks int `config:"blocks"`
	// MetricsAddr is the address on which the manager serves its metrics, as Config.MetricsAddr is
	// an engine's. {rank} stands for "scheduler".
	MetricsAddr string `config:"metrics_addr"`
}

// OpenManager opens the file tiers of all ranks, and returns the Manager over them, whose pools are empty. The context bounds the opening.
func OpenManager(ctx context.Context, c ManagerConfig) (_ *Manager, err error) {
	m := &Manager{closers: unwind.New(), exporter: newExporter()}
	defer func() {
		if err != nil {
			err = fmt.Errorf("open manager: %w", errors.Join(err, m.closers.Undo(ctx, unwind.Timeout)))
		}
	}()
	if err := errors.Join(checkMetricsAddr(c.MetricsAddr), m.exporter.serve(ctx, c.MetricsAddr, "scheduler", &m.closers)); err != nil {
		return nil, err
	}
	var mc manager.Config
	smallest := 0 // slots of the workers' caches
	c.Ranks = slices.Clone(c.Ranks)
	for i := range c.Ranks {
		if err := c.Ranks[i].readFile(ctx); err != nil {
			return nil, fmt.Errorf("rank %d: %w", i, err)
		}
		mc.AdmitAlways = mc.AdmitAlways || c.Ranks[i].Store.AdmitAlways
	}
	for i := range c.Ranks {
		r, slots, err := m.openRank(ctx, &c.Ranks[i])
		if err != nil {
			return nil, fmt.Errorf("rank %d: %w", i, err)
		}
		mc.Ranks = append(mc.Ranks, r)
		if i == 0 || slots < smallest {
			smallest = slots
		}
	}
	if c.Blocks > smallest && len(c.Ranks) > 0 {
		return nil, fmt.Errorf("blocks is %d, and the smallest cache of the workers has slots for %d: give at most that: %w", c.Blocks, smallest, errdefs.ErrInvalid)
	}
	room := c.Blocks
	if room == 0 {
		room = max(1, smallest-max(1, smallest/16))
	}
	mc.OpenPool = func(evicted func(key block.Key)) (manager.Pool, error) {
		return cache.Open(cache.Config{Blocks: room, Formats: mc.Ranks[0].Formats, Evicted: evicted})
	}
	if m.Manager, err = manager.Open(mc); err != nil {
		return nil, err
	}
	m.closers.AddPlain("index", m.Manager.Close)
	m.exporter.metrics.SetManager(m.Stats)
	m.exporter.state.Store(stateOpen)
	return m, nil
}

// openRank opens the files of a worker and says how many blocks its cache holds.
func (m *Manager) openRank(ctx context.Context, c *Config) (manager.Rank, int, error) {
	if err := c.Validate(); err != nil {
		return manager.Rank{}, 0, err
	}
	groups, err := c.groups()
	if err != nil {
		return manager.Rank{}, 0, err
	}
	tiers, err := c.Store.tiers()
	if err != nil {
		return manager.Rank{}, 0, err
	}
	r := manager.Rank{Formats: groups.formats}
	slots := int(c.Store.slotBytes(groups.formats) / groups.formats.MaxImageBytes())
	switch {
	case tiers[0] != store.TierCache || slices.Contains(tiers, store.TierLog):
		return r, 0, fmt.Errorf("the pipeline is %q, where a manager knows %s, and %s above %s: %w",
			c.Store.Pipeline, store.TierCache, store.TierCache, store.TierFile, errdefs.ErrNotSupported)
	case slices.Contains(tiers, store.TierFile):
		fc := c.Store.fileTier(groups.formats)
		// Making room is the workers'.
		fc.Identities, fc.FS, fc.MaxBytes, fc.DirBytes = groups.ids, dirfs.Of(ctx), 0, nil
		var t tier.Tier
		if t, err = file.Open(ctx, fc); err != nil {
			return r, 0, err
		}
		m.closers.Add("file tier", t.Close)
		r.Files = t
	}
	return r, slots, nil
}

// Close refuses new jobs, and closes the file tiers. ErrBusy while jobs have not ended: then it may be called again.
func (m *Manager) Close(ctx context.Context) error {
	m.exporter.state.Store(stateClosing)
	if err := m.closers.Close(ctx); err != nil {
		return fmt.Errorf("close manager: %w", err)
	}
	return nil
}

// Drop takes blocks out of the cache tier: what a Manager has evicted (Job.Evicted). It leaves the tiers below alone, does not wait, and passes over
// blocks that are not there. It returns how many stay for now, since something still uses them: these the cache evicts by itself.
func (e *Engine) Drop(ctx context.Context, keys []Key) (stay int, err error) {
	return e.store.Drop(ctx, keys)
}
