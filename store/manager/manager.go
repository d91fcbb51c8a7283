package manager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store/admission"
	"github.com/kvlane/kvlane/tier"
)

// Config describes a Manager.
type Config struct {
	// OpenPool opens what stands for the workers' pools: a cache of as many blocks, without memory, which tells evicted what makes room. Keep
	// some of a pool's slots back for blocks that are on their way to files.
	OpenPool func(evicted func(key block.Key)) (Pool, error)
	// Ranks are what the blocks of each worker are, which differ where the workers hold different heads. One stands for all workers
	// whose blocks are the same.
	Ranks []Rank
	// AdmitAlways has Manager.Worth say that all blocks are worth loading.
	AdmitAlways bool
	// FilesMax is how long Lookup waits for files, of which a network's may not answer at all. Default DefaultFilesMax.
	FilesMax time.Duration
	// Clock times jobs, and waits for files. Default: the real one.
	Clock clockwork.Clock
}

// State is where a block stands.
type State uint8

// The states. Those of a block that is there come last.
const (
	Absent   State = iota
	UnderWay       // a job that has not ended stores it, or brings it from files
	InPool         // in the pool of every worker
	InFiles        // in files, and not in every pool
)

// There says whether a block can be loaded.
func (s State) There() bool { return s == InPool || s == InFiles }

// Rank is what a worker's blocks are, and where they are below its pool.
type Rank struct {
	Formats block.Formats // one a page group, in the same order for all ranks
	Files   tier.Tier     // asked whether blocks are there, and for nothing else; nil: there is none. The Manager does not close it.
}

// Pool is a tier of slots of which the Manager asks no bytes.
type Pool interface {
	tier.SlotTier
	tier.Statter
	tier.OrderedTier
}

// Validate reports everything that is wrong with c. Errors wrap ErrInvalid.
func (c *Config) Validate() error {
	var errs []error
	if len(c.Ranks) == 0 || c.OpenPool == nil {
		errs = append(errs, fmt.Errorf("manager: no ranks, or no pool: %w", errdefs.ErrInvalid))
	}
	for i, r := range c.Ranks {
		if len(r.Formats) != len(c.Ranks[0].Formats) || (r.Files == nil) != (c.Ranks[0].Files == nil) {
			errs = append(errs, fmt.Errorf("manager: rank %d has %d page groups, with files %t, and rank 0 has %d, with files %t: %w",
				i, len(r.Formats), r.Files != nil, len(c.Ranks[0].Formats), c.Ranks[0].Files != nil, errdefs.ErrInvalid))
		}
	}
	return errors.Join(errs...)
}

// Block names a block as the engine does.
type Block struct {
	Group int    // its page group
	Hash  string // of its tokens, chained to those before them
}

// Manager knows which blocks the workers have. See the package's documentation.
type Manager struct {
	ranks     []Rank
	now       context.Context // has ended: what has to be waited for is refused
	clock     clockwork.Clock
	always    bool // all is worth loading
	admission admission.Model
	files     *files      // nil: there are none
	order     *tier.Order // of rank 0's keys, for the pool

	mu      sync.Mutex
	pool    Pool                 // of rank 0's keys; one fill or pin a block and job
	names   map[block.Key]*Block // of all that is in pool, a new one each time that it comes there
	evicted []Block              // that no job has told the workers of
	live    int                  // jobs
	stats   Stats
}

// Stats counts what a Manager did since it was opened, in blocks, but for Jobs.
type Stats struct {
	Blocks    int64 // in the workers' pools now
	Jobs      int   // that have not ended
	FromPool  int64 // loaded from pools
	FromFiles int64 // loaded from files
	Stored    int64
	Evicted   int64
	Forgotten int64           // could not be stored or loaded, or were reported wrong
	Overdue   int64           // looked for in files that did not answer in time
	Refused   int64           // could not be stored since all places were in use
	Admission admission.Stats // what Worth has decided
}

// Open returns a Manager of empty pools.
func Open(c Config) (*Manager, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("open manager: %w", err)
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	if c.Clock == nil {
		c.Clock = clockwork.NewRealClock()
	}
	m := &Manager{ranks: c.Ranks, now: now, clock: c.Clock, always: c.AdmitAlways, names: make(map[block.Key]*Block), order: tier.NewOrder(tier.OrderKeys)}
	if c.Ranks[0].Files != nil {
		m.files = newFiles(&c)
	}
	pool, err := c.OpenPool(m.evict)
	if err != nil {
		return nil, fmt.Errorf("open manager: %w", err)
	}
	m.pool = pool
	pool.SetOrder(m.order)
	return m, nil
}

// evict takes note of a block that has to go. The caller, which has the pool reserve a place, holds mu.
func (m *Manager) evict(key block.Key) {
	m.evicted = append(m.evicted, *m.names[key])
	delete(m.names, key)
	m.stats.Evicted++
}

// Close refuses new jobs. ErrBusy, with their number, while jobs have not ended: then it may be called again.
func (m *Manager) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.pool.Close(context.Background()); err != nil && m.live > 0 {
		return fmt.Errorf("close manager: %d jobs have not ended: %w", m.live, errdefs.ErrBusy)
	}
	return nil
}

// Stats returns the figures of now.
func (m *Manager) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	if m.files != nil {
		s.Overdue = m.files.overdue.Load()
	}
	s.Blocks, s.Jobs, s.Admission = m.pool.Stats().Blocks, m.live, m.admission.Stats()
	return s
}

// keys returns the names that rank's blocks have in its tiers.
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

// Lookup returns the state of each block. blocks are in the order of a prompt; blocks of several
// page groups are in the order of their tokens. Lookup pins nothing: the state may change until
// Load. If the file tier fails, its blocks count as absent, and its error is returned with the
// states: ErrBusy if it has not answered within Config.FilesMax. Until it answers, further calls
// return ErrBusy at once.
func (m *Manager) Lookup(ctx context.Context, blocks []Block) ([]State, error) {
	keys, err := m.keys(0, blocks)
	if err != nil {
		return nil, fmt.Errorf("look up %d blocks: %w", len(blocks), err)
	}
	pooled := make([]tier.State, len(blocks))
	if err := m.pool.Lookup(ctx, keys, pooled); err != nil {
		return nil, fmt.Errorf("look up %d blocks: %w", len(blocks), err)
	}
	states := make([]State, len(blocks))
	var below []Block
	var at []int
	for i, s := range pooled {
		switch s {
		case tier.Ready:
			states[i] = InPool
		case tier.Filling:
			states[i] = UnderWay
		default:
			below, at = append(below, blocks[i]), append(at, i)
		}
	}
	if len(at) > 0 {
		m.note(block.Key{}, keys)
	}
	there, err := m.inFiles(ctx, below)
	for k, i := range at {
		if there != nil && there[k] {
			states[i] = InFiles
		}
	}
	return states, err
}

// note remembers the order of blocks that are not in the pool yet: the pool evicts the end of a
// prompt before its beginning.
func (m *Manager) note(before block.Key, keys []block.Key) {
	if len(keys) > 0 {
		m.order.Note(keys, m.order.After(before, keys[0]))
	}
}

// Touch reports that the blocks are in use, so that others are evicted before them. Those that are
// not there are passed over.
func (m *Manager) Touch(blocks []Block) error {
	keys, err := m.keys(0, blocks)
	if err != nil {
		return fmt.Errorf("touch %d blocks: %w", len(blocks), err)
	}
	m.pool.Use(keys, tier.Place{})
	return nil
}

// Forget makes blocks misses that a worker found wrong, or does not have. Those that a job has pinned go with its end. What is in files
// the workers have set aside there themselves.
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

// forget drops a block, if it is there, and tells the workers to. The caller holds mu.
func (m *Manager) forget(key block.Key) {
	s, err := m.pool.Open(m.now, key)
	if err != nil {
		return // it is not there, or on its way, which its job's end is about
	}
	s.Corrupt(errForgotten)
	s.Release()
	m.gone(key)
}

// gone takes note of a block that is not in the pool any more for another reason than want of room. The caller holds mu.
func (m *Manager) gone(key block.Key) {
	m.evicted = append(m.evicted, *m.names[key])
	delete(m.names, key)
	m.stats.Forgotten++
}

var errForgotten = errors.New("a worker could not use it")

// Reset forgets every block that no job has in use, in pools; files stay. It returns how many it forgot.
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
