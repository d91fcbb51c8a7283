package manager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store/admission"
	"github.com/kvlane/kvlane/tier"
)

// Config configures a Manager.
type Config struct {
	// OpenPool opens a cache without memory that tracks the blocks of the workers' pools. It calls
	// evicted for each evicted block. It should have fewer slots than a worker's pool, because
	// blocks stay in that pool while they are written to files.
	OpenPool func(evicted func(key block.Key)) (Pool, error)
	// Ranks are the blocks of each worker. They differ if workers hold different heads. One rank
	// stands for all workers with the same blocks.
	Ranks []Rank
	// Direct is set if all workers can read blocks in files without their pools: see Job.Direct.
	Direct bool
	// AdmitAlways makes Manager.Worth return all blocks.
	AdmitAlways bool
	// FilesMax bounds the time that Lookup waits for each tier below the pools: a network file system
	// may not answer.
	// Default DefaultFilesMax.
	FilesMax time.Duration
	// Clock times jobs and waits for files. Default: the system clock.
	Clock clockwork.Clock
}

// State is the state of a block.
type State uint8

// The states of a block. A block in InPool, InFiles or InRemote is present.
const (
	Absent   State = iota
	UnderWay       // a job is storing the block, or reading it from files
	InPool         // the pool of every worker has the block
	InFiles        // files have the block, and at least one pool does not
	InRemote       // block servers have the block, and pool and files of at least one rank do not
)

// There reports whether a block can be loaded.
func (s State) There() bool { return s >= InPool }

// Rank describes the blocks of a worker and the tiers below its pool.
type Rank struct {
	Formats block.Formats // by page group, the same order for all ranks
	// Below are the same tiers for all ranks, from fast to slow. The Manager calls Lookup, and
	// SetAnchors of a tier.Placed. It does not close them.
	Below []tier.Tier
}

// Pool is a tier of slots whose bytes the Manager does not access.
type Pool interface {
	tier.SlotTier
	tier.Statter
	tier.OrderedTier
	tier.Admitter
}

// Validate returns every problem of c. Errors wrap ErrInvalid.
func (c *Config) Validate() error {
	var errs []error
	if len(c.Ranks) == 0 || c.OpenPool == nil {
		errs = append(errs, fmt.Errorf("manager: no ranks, or no pool: %w", errdefs.ErrInvalid))
	}
	for i, r := range c.Ranks {
		if first := c.Ranks[0]; len(r.Formats) != len(first.Formats) || len(r.Below) != len(first.Below) {
			errs = append(errs, fmt.Errorf("manager: rank %d has %d page groups and %d tiers below its pool, and rank 0 has %d and %d: %w",
				i, len(r.Formats), len(r.Below), len(first.Formats), len(first.Below), errdefs.ErrInvalid))
		}
	}
	return errors.Join(errs...)
}

// Block names a block by the engine's hash.
type Block struct {
	Group int    // page group
	Hash  string // of its tokens and all tokens before them
}

// Manager is the index of the workers' blocks: see the package documentation.
type Manager struct {
	ranks      []Rank
	noWait     context.Context // has ended: for calls of the pool that must not block
	clock      clockwork.Clock
	always     bool // Config.AdmitAlways
	direct     bool // Config.Direct
	admission  admission.Model
	tiers      []*below        // below the pools
	order      *tier.Order     // of rank 0's keys, for the pool
	runs       *tier.Anchors   // of rank 0's keys, for all ranks; nil if no tier is tier.Placed
	placed     []*tier.Anchors // of each rank's keys, for its tiers
	unanchored atomic.Int64

	mu      sync.Mutex
	pool    Pool                 // keys of rank 0; each job has one fill or pin per block
	names   map[block.Key]*Block // by key in pool; a new pointer at each entry of a block
	evicted []Block              // evicted blocks that were not passed to a job yet
	live    int                  // jobs that have not ended
	stats   Stats
}

// Stats counts blocks since the Manager was opened. Jobs counts running jobs.
type Stats struct {
	Blocks     int64 // in the workers' pools
	Jobs       int   // jobs that have not ended
	FromPool   int64 // loaded from pools
	FromFiles  int64 // loaded from files or block servers
	Direct     int64 // part of FromFiles: loaded without a slot in the pools
	FellBack   int64 // part of Direct: read by a worker through its pool
	Stored     int64
	Evicted    int64
	Forgotten  int64           // could not be stored or loaded, or were reported corrupt
	Overdue    int64           // blocks of lookups that exceeded Config.FilesMax
	Unanchored int64           // blocks that were looked up or passed to workers without an anchor
	Refused    int64           // blocks not stored because all slots were in use
	Admission  admission.Stats // decisions of Worth
}

// Open returns a Manager of empty pools.
func Open(c Config) (*Manager, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("open manager: %w", err)
	}
	noWait, cancel := context.WithCancel(context.Background())
	cancel()
	if c.Clock == nil {
		c.Clock = clockwork.NewRealClock()
	}
	m := &Manager{ranks: c.Ranks, noWait: noWait, clock: c.Clock, always: c.AdmitAlways, direct: c.Direct, names: make(map[block.Key]*Block), order: tier.NewOrder(tier.OrderKeys)}
	for _, t := range c.Ranks[0].Below {
		m.tiers = append(m.tiers, newBelow(t, c.FilesMax, c.Clock))
		if _, ok := t.(tier.Placed); ok {
			m.runs = tier.NewAnchors(tier.OrderKeys)
		}
	}
	for _, r := range c.Ranks {
		anchors := tier.NewAnchors(tier.OrderKeys)
		m.placed = append(m.placed, anchors)
		for _, t := range r.Below {
			if p, ok := t.(tier.Placed); ok {
				p.SetAnchors(anchors)
			}
		}
	}
	pool, err := c.OpenPool(m.evict)
	if err != nil {
		return nil, fmt.Errorf("open manager: %w", err)
	}
	m.pool = pool
	pool.SetOrder(m.order)
	return m, nil
}

// evict records an evicted block. The pool calls it while the caller of Reserve holds mu.
func (m *Manager) evict(key block.Key) {
	m.evicted = append(m.evicted, *m.names[key])
	delete(m.names, key)
	m.stats.Evicted++
}

// Close refuses new jobs. If jobs have not ended, it returns ErrBusy with their number, and may be
// called again.
func (m *Manager) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.pool.Close(context.Background()); err != nil && m.live > 0 {
		return fmt.Errorf("close manager: %d jobs have not ended: %w", m.live, errdefs.ErrBusy)
	}
	return nil
}

// Stats returns the current figures.
func (m *Manager) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	for _, t := range m.tiers {
		s.Overdue += t.overdue.Load()
	}
	s.Unanchored = m.unanchored.Load()
	s.Blocks, s.Jobs, s.Admission = m.pool.Stats().Blocks, m.live, m.admission.Stats()
	return s
}

// keys returns the keys of blocks in the tiers of a rank.
func (m *Manager) keys(rank int, blocks []Block) ([]block.Key, error) {
	fs := m.ranks[rank].Formats
	keys := make([]block.Key, len(blocks))
	for i, b := range blocks {
		if b.Group < 0 || b.Group >= len(fs) {
			return nil, fmt.Errorf("block %d is of page group %d of %d: %w", i, b.Group, len(fs), errdefs.ErrInvalid)
		}
		keys[i] = fs.Key(b.Group, []byte(b.Hash))
	}
	return keys, nil
}

// note records the order of blocks that are not in the pool yet, because the pool evicts the end of
// a prompt before its beginning.
func (m *Manager) note(before block.Key, keys []block.Key) {
	if len(keys) > 0 {
		m.order.Note(keys, m.order.After(before, keys[0]))
	}
}

// Touch reports a use of blocks, so that others are evicted before them. It ignores absent blocks.
func (m *Manager) Touch(blocks []Block) error {
	keys, err := m.keys(0, blocks)
	if err != nil {
		return fmt.Errorf("touch %d blocks: %w", len(blocks), err)
	}
	m.pool.Use(keys, tier.Place{})
	return nil
}

// Forget removes blocks that a worker found corrupt or does not have. Blocks that a job has pinned
// are removed when the job ends. Files are not changed: the workers move corrupt files to
// quarantine.
func (m *Manager) Forget(blocks []Block) error {
	keys, err := m.keys(0, blocks)
	if err != nil {
		return fmt.Errorf("forget %d blocks: %w", len(blocks), err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range keys {
		m.forget(keys[i])
	}
	return nil
}

// forget removes a block, if it is present, and records it as evicted. The caller holds mu.
func (m *Manager) forget(key block.Key) {
	s, err := m.pool.Open(m.noWait, key)
	if err != nil {
		return // absent, or a job is storing or reading it: then Job.End removes it
	}
	s.Corrupt(errForgotten)
	s.Release()
	m.gone(key)
}

// gone records a block that left the pool for a reason other than lack of space. The caller holds
// mu.
func (m *Manager) gone(key block.Key) {
	m.evicted = append(m.evicted, *m.names[key])
	delete(m.names, key)
	m.stats.Forgotten++
}

var errForgotten = errors.New("a worker could not use it")

// Reset forgets all blocks in pools, except those of running jobs, and returns their number. It
// does not remove files.
func (m *Manager) Reset() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for key, name := range m.names {
		if m.pool.Delete(context.Background(), key) == nil {
			m.evicted = append(m.evicted, *name)
			delete(m.names, key)
			n++
		}
	}
	return n
}

func (m *Manager) blockBytes(group int) int64 {
	if group < 0 || group >= len(m.ranks[0].Formats) {
		return 0
	}
	return m.ranks[0].Formats[group].Layout.ImageBytes()
}
