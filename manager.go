package kvlane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/settings"
	"github.com/kvlane/kvlane/internal/unwind"
	"github.com/kvlane/kvlane/store/manager"
	"github.com/kvlane/kvlane/tier/cache"
)

// The types of a Manager's methods. Package manager documents them.
type (
	// Block names a block by the hash of the inference engine.
	Block = manager.Block
	// BlockState is the state of a block: see manager.State.
	BlockState = manager.State
	// Job is a load or dump of some blocks by all workers.
	Job = manager.Job
)

// Manager is the index of the blocks of Engines in other processes, for inference engines whose
// scheduler and workers are separate processes. See package manager. It has no device and copies no
// blocks. All methods are safe for concurrent use.
type Manager struct {
	*manager.Manager
	closers  unwind.Stack
	exporter *exporter
}

// ManagerConfig configures a Manager.
type ManagerConfig struct {
	// Ranks are the configurations of the workers' Engines. All have the same pipeline: a cache,
	// alone or above tiers that several processes may open (see
	// docs/tiers.md). The Manager opens their directories, and connects to their
	// block servers, too. Workers with the same blocks in the
	// same directories need only one entry.
	Ranks []Config `config:"ranks"`
	// Blocks is the number of blocks that the Manager keeps in each worker's cache, at most the
	// slots of the smallest cache. Zero: fifteen sixteenths of that. The other slots hold evicted
	// blocks that are still being written to files.
	Blocks int `config:"blocks"`
	// Direct must be set if the Engines of all workers read files by direct storage
	// (Engine.Direct). Jobs may then be direct: see Job.Direct.
	Direct bool `config:"direct"`
	// MetricsAddr is the address on which the manager serves its metrics, in the format of
	// Config.MetricsAddr. {rank} is replaced by "scheduler".
	MetricsAddr string `config:"metrics_addr"`
}

// OpenManager opens the tiers below the caches of all ranks and returns a Manager with empty pools. ctx bounds
// the opening.
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
	mc := manager.Config{Direct: c.Direct}
	smallest := 0 // of the workers' caches
	c.Ranks = slices.Clone(c.Ranks)
	for i := range c.Ranks {
		if err := c.Ranks[i].readFile(ctx); err != nil {
			return nil, fmt.Errorf("rank %d: %w", i, err)
		}
		mc.AdmitAlways = mc.AdmitAlways || c.Ranks[i].Store.Admission == AdmissionAlways
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
		return nil, fmt.Errorf("blocks is %d, but the smallest cache of the workers has %d slots: give at most that number: %w", c.Blocks, smallest, errdefs.ErrInvalid)
	}
	slots := c.Blocks
	if slots == 0 {
		slots = max(1, smallest-max(1, smallest/16))
	}
	mc.OpenPool = func(evicted func(key block.Key)) (manager.Pool, error) {
		return cache.Open(cache.Config{Blocks: slots, Formats: mc.Ranks[0].Formats, Evicted: evicted})
	}
	if m.Manager, err = manager.Open(mc); err != nil {
		return nil, err
	}
	m.closers.AddPlain("index", m.Manager.Close)
	m.exporter.metrics.SetManager(m.Stats)
	m.exporter.state.Store(stateOpen)
	return m, nil
}

// openRank opens the tiers below the cache of a worker, and returns the number of slots of the
// cache.
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
	refuse := func(format string, args ...any) (manager.Rank, int, error) {
		return r, 0, fmt.Errorf("pipeline %q: a manager "+format+": %w", slices.Concat([]any{strings.Join(tiers, "|")}, args, []any{errdefs.ErrNotSupported})...)
	}
	if tiers[0] != cache.Name {
		return refuse("needs tier %s first, not %s", cache.Name, tiers[0])
	}
	for _, name := range tiers[1:] {
		row := settings.TierByName(name)
		if !row.Shared {
			return refuse("cannot use tier %s, which only one process may have open", name)
		}
		unbounded := c.Store // the workers evict
		row.Unbound(&unbounded)
		t, err := row.Config(&unbounded, groups.blocks(ctx, nil)).OpenTier(ctx)
		if err != nil {
			return r, 0, err
		}
		m.closers.Add(name+" tier", t.Close)
		r.Below = append(r.Below, t)
	}
	return r, slots, nil
}

// Close refuses new jobs and closes the tiers. It returns ErrBusy while jobs are running, and
// may be called again.
func (m *Manager) Close(ctx context.Context) error {
	m.exporter.state.Store(stateClosing)
	if err := m.closers.Close(ctx); err != nil {
		return fmt.Errorf("close manager: %w", err)
	}
	return nil
}

// Drop removes blocks that a Manager has evicted (Job.Evicted) from the cache tier, but not from
// the tiers below. It ignores missing blocks and does not wait. stay is the number of blocks that
// stay because they are in use; the cache evicts them later.
func (e *Engine) Drop(ctx context.Context, keys []Key) (stay int, err error) {
	return e.store.Drop(ctx, keys)
}

// WriteMetrics writes the manager's metrics in the Prometheus text format.
func (m *Manager) WriteMetrics(w io.Writer) error { return m.exporter.metrics.WriteText(w) }
