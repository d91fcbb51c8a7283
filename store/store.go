package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"
	"golang.org/x/sync/semaphore"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store/admission"
	"github.com/kvlane/kvlane/store/index"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/renew"
	"github.com/kvlane/kvlane/tier"
)

// Limits on what one task has in hand at a time.
const (
	windowBlocks = 512 // blocks of a load that are opened and wait for the CPU to verify them
	firstBlocks  = 128 // blocks of a task that are copied while the others are looked at
	windowReads  = 128 // blocks of a load that are asked for below
	ahead        = 2   // batches of a load in the stream at a time: one is copied while the next is made
	maxTries     = 3   // times a block is tried again when another's fill of it failed
	passingTries = 200 // the same, where others' fills are gone again when they have ended
)

// errNow is the cause of Store.now: what could not be had at once is busy.
var errNow = fmt.Errorf("not to be had at once: %w", errdefs.ErrBusy)

// Store is a pipeline of tiers with GPU pages above it. Safe for concurrent use.
type Store struct {
	cfg   Config
	index *index.Index
	tiers []tier.Tier // the cache and next
	cache tier.SlotTier
	next  []tier.Tier
	// durable are those of next that can be written: a block is durable when all of them have it.
	durable []tier.Tier
	// full says of each of durable that the last write there waited for room in vain.
	full []atomic.Bool
	// passing says that the cache keeps nothing (tier.TransientTier): blocks pass through it.
	passing bool
	tries   uint8 // times a block is tried again that another was filling
	reads   bool  // some tier below reads without verifying
	slots   mem.Slots
	clock   clockwork.Clock

	formats block.Formats
	layers  [][]int // see Config.Layers
	where   []where // of each of the model's layers
	shards  int     // of a task: the model's layers, over all page groups
	leaves  *leafTable
	most    int   // blocks in a batch
	piece   int   // blocks of a layerwise load that are copied while the others are looked at, at least: headParts of their first shard
	chunk   int   // blocks of a layerwise dump that hold slots at a time
	held    int64 // slots that layerwise dumps may hold
	now     context.Context
	loads   *renew.Stream
	dumps   *renew.Stream
	readers *pool
	writers *pool
	checks  *pool
	runners runners
	count   counters
	scratch sync.Pool

	admission admission.Model

	// The slots that layerwise dumps may hold; see the package comment.
	layerSlots *semaphore.Weighted

	turns   turns // of loads and prefetches
	dumping turns // of dumps, which a slow disk may hold for long
	closing chan struct{}
	loadCtx context.Context // ends when Close begins
	dumpCtx context.Context // ends when Close has run out of time
	endLoad context.CancelCauseFunc
	endDump context.CancelCauseFunc
	closer  chan struct{} // a lock with a context: one Close at a time

	mu      sync.Mutex
	closed  bool  // guarded by mu
	stopped bool  // guarded by closer: pools and lanes are gone
	told    error // guarded by closer: what streams said that are closed all the same
	wg      sync.WaitGroup
	joined  chan struct{} // closed when every task has ended; made by the first Close
}

// Open returns a store over the tiers of c. It opens no stream yet and starts the pools' goroutines. Errors wrap
// ErrInvalid and name every field that is wrong.
func Open(c Config) (*Store, error) {
	c.setDefaults()
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	n := slotCount(&c)
	held, rest := max(1, n/4), max(1, n/8)
	c.Cache.LimitRetained(int(max(0, n-held-rest)))
	tiers := append([]tier.Tier{c.Cache}, c.Next...)
	x, err := index.Open(index.Config{Tiers: tiers, LeaseMax: c.LeaseMax, Clock: c.Clock, Fallback: c.Hooks.Fallback})
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := &Store{
		cfg:        c,
		index:      x,
		tiers:      tiers,
		cache:      c.Cache,
		next:       c.Next,
		slots:      c.Cache.Slots(),
		clock:      c.Clock,
		formats:    c.Formats,
		layers:     c.Layers,
		leaves:     newLeafTable(c.Formats),
		held:       held,
		layerSlots: semaphore.NewWeighted(held),
		turns:      make(turns, c.Tasks), dumping: make(turns, c.Tasks),
		closing: make(chan struct{}),
		closer:  make(chan struct{}, 1),
	}
	if s.where, err = locate(s.formats, s.layers); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s.shards = len(s.where)
	s.most = int(min(max(1, c.BatchBytes/s.formats.MaxImageBytes()), math.MaxInt32))
	s.piece = int(max(1, headParts*c.PartBytes/s.formats[s.where[0].group].Layout.ShardBytes(0)))
	s.chunk = int(min((held+1)/2, windowBlocks)) // two dumps at a time, if they are large
	for _, tr := range s.next {
		if r, ok := tr.(tier.ReadOnlyTier); !ok || !r.ReadOnly() {
			s.durable = append(s.durable, tr)
		}
	}
	s.full = make([]atomic.Bool, len(s.durable))
	s.passing, s.tries = passing(c.Cache), maxTries
	if s.passing {
		s.tries = passingTries
	}
	s.reads = slices.ContainsFunc(s.next, func(t tier.Tier) bool { _, able := t.(tier.Reader); return able })
	now, end := context.WithCancelCause(context.Background())
	end(errNow)
	s.now = now
	s.loadCtx, s.endLoad = context.WithCancelCause(context.Background())
	s.dumpCtx, s.endDump = context.WithCancelCause(context.Background())
	s.loads, s.dumps = s.newStream("load", c.OpenLoad), s.newStream("dump", c.OpenDump)
	s.count.init(len(tiers))
	s.readers = newPool(jobFetch, c.Readers)
	s.writers = newGroupPool(c.Writers, s.group(), s.write)
	s.checks = newPool(jobCheck, c.Checkers)
	s.runners.init()
	return s, nil
}

// group is how many blocks a writer takes at a time.
func (s *Store) group() int {
	for _, t := range s.durable {
		if _, able := t.(tier.ManyPutter); able {
			return writeMany
		}
	}
	return 1
}

// Lease pins blocks: see index.Lease.
type Lease = index.Lease

// Hit is the answer of Lookup for one key: see index.Hit.
type Hit = index.Hit

// Lookup says for each key where it stands: see index.Index.Lookup.
func (s *Store) Lookup(ctx context.Context, keys []block.Key) ([]Hit, error) {
	defer s.took(&s.count.lookedUp, s.clock.Now())
	return s.index.Lookup(ctx, keys)
}

// LeasePrefix pins the longest prefix of keys whose blocks are all Ready: see index.Index.LeasePrefix.
func (s *Store) LeasePrefix(ctx context.Context, keys []block.Key, ttl time.Duration) (*Lease, error) {
	defer s.took(&s.count.leased, s.clock.Now())
	return s.index.LeasePrefix(ctx, keys, ttl)
}

// Drop takes blocks out of the cache, and leaves the tiers below alone. It does not wait, and passes over blocks that are not there. It
// returns how many stay for now, since something still uses them; these are evicted in their turn.
func (s *Store) Drop(ctx context.Context, keys []block.Key) (stay int, err error) {
	if err := block.CheckKeys(keys); err != nil {
		return 0, fmt.Errorf("drop %d blocks: %w", len(keys), err)
	}
	for i := range keys {
		switch err := s.cache.Delete(ctx, keys[i]); {
		case err == nil || notFound(err):
		case isBusy(err):
			stay++
		default:
			return stay, fmt.Errorf("drop %d blocks: %w", len(keys), err)
		}
	}
	return stay, nil
}

// newStream returns the stream of one direction.
func (s *Store) newStream(direction string, open func() (stream.Stream, error)) *renew.Stream {
	return renew.New(renew.Options{
		Name: direction, Open: open, Clock: s.clock,
		Retried: func() { s.count.retries.Add(1) },
		Reopened: func(cause error) {
			s.count.reopened.Add(1)
			s.cfg.Hooks.streamReopened(direction, cause)
		},
	})
}

// OpenStreams opens the streams of loads and dumps, which otherwise happens when they are first needed.
func (s *Store) OpenStreams(ctx context.Context) error {
	return errors.Join(s.loads.Open(ctx), s.dumps.Open(ctx))
}

// turns has one token a running task.
type turns chan struct{}

// begin admits a task, waiting for its turn until ctx ends. Every begin that returned nil has one end.
func (s *Store) begin(ctx context.Context, tasks turns) error {
	select {
	case <-s.closing:
		return errdefs.ErrClosed
	default:
	}
	select {
	case tasks <- struct{}{}: // also for who does not wait, as ctx has ended
		s.count.turns.observe(0)
	default:
		defer s.took(&s.count.turns, s.clock.Now()) // also where it was in vain
		select {
		case tasks <- struct{}{}:
		case <-s.closing:
			return errdefs.ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("wait for one of %d tasks to end: %w: %w", cap(tasks), errdefs.ErrBusy, context.Cause(ctx))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		<-tasks
		return errdefs.ErrClosed
	}
	s.wg.Add(1)
	return nil
}

// took observes how long something took that has begun then.
func (s *Store) took(l *latency, begun time.Time) { l.observe(s.clock.Now().Sub(begun)) }

func (s *Store) end(tasks turns) {
	<-tasks
	s.wg.Done()
}

// Close refuses new work, cancels loads, prefetches and layerwise dumps that miss a shard or what it comes after, releases all
// leases, finishes the other dumps with their writes to the tiers below (those that still wait for DumpOptions.After if that
// resolves within Config.LeaseMax), joins all goroutines and closes the streams. If ctx ends first,
// dumps and writes are canceled too and Close returns ErrCanceled with the context's cause; it may then be called again, to wait
// for hardware and tiers to let go, as after a stream that did not close. Once a Close has returned nil the tiers may be closed:
// what else streams had to tell, the Close that closed them tells, and later ones return nil at once.
func (s *Store) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		// Before dumps hear of it, whose blocks loads may wait for.
		s.endLoad(fmt.Errorf("store is closing: %w", errdefs.ErrClosed))
		close(s.closing)
		s.joined = make(chan struct{})
		go func() { // ends with the last task; Close waits for it
			s.wg.Wait()
			close(s.joined)
		}()
	}
	s.mu.Unlock()
	s.index.Close()
	giveUp := func() error {
		s.endDump(fmt.Errorf("store closed before the dump was done: %w", errdefs.ErrCanceled))
		return closeError(ctx)
	}

	select {
	case s.closer <- struct{}{}:
		defer func() { <-s.closer }()
	case <-ctx.Done():
		return giveUp()
	}
	if s.stopped {
		return nil
	}
	select {
	case <-s.joined:
	case <-ctx.Done():
		return giveUp()
	}
	s.readers.close()
	s.writers.close()
	s.checks.close()
	s.runners.close()
	toldLoads, errLoads := s.loads.Close(ctx)
	toldDumps, errDumps := s.dumps.Close(ctx)
	s.told = errors.Join(s.told, toldLoads, toldDumps)
	if err := errors.Join(errLoads, errDumps); err != nil { // a stream is still open, and so may be at the slots
		if ctx.Err() != nil {
			return errors.Join(closeError(ctx), err)
		}
		return fmt.Errorf("close store: %w", err)
	}
	s.endDump(errdefs.ErrClosed)
	s.stopped = true
	if s.told != nil {
		return fmt.Errorf("close store: %w", s.told)
	}
	return nil
}

func closeError(ctx context.Context) error {
	return fmt.Errorf("close store: %w: %w", errdefs.ErrCanceled, context.Cause(ctx))
}

// isBusy says whether err means "not without waiting", from a tier that was asked with Store.now.
func isBusy(err error) bool {
	return errors.Is(err, errdefs.ErrBusy) || errors.Is(err, context.Canceled)
}

// waitCtx bounds one wait for a slot, for another's fill, or for room in a tier below.
func (s *Store) waitCtx(ctx context.Context) (context.Context, context.CancelFunc) {
	return s.waitFor(ctx, s.cfg.WaitMax)
}

func (s *Store) waitFor(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	wait, end := context.WithCancelCause(ctx)
	timer := s.clock.AfterFunc(d, func() { end(context.DeadlineExceeded) })
	return wait, func() {
		timer.Stop()
		end(nil)
	}
}

// reserve takes a slot for key, waiting for one. The caller holds no slot but such as leases and layerwise dumps may.
func (s *Store) reserve(ctx context.Context, key block.Key) (tier.Fill, error) {
	f, err := s.cache.Reserve(s.now, key)
	if err == nil || !isBusy(err) {
		return f, err
	}
	wait, cancel := s.waitCtx(ctx)
	defer cancel()
	f, err = s.cache.Reserve(wait, key)
	if err != nil && wait.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("no slot came free in %v: %w: %w", s.cfg.WaitMax, errdefs.ErrBusy, err)
	}
	return f, err
}

// open pins key in the cache, waiting while another fills it. The caller holds no slot but such as leases and layerwise dumps may.
func (s *Store) open(ctx context.Context, key block.Key) (tier.Slot, error) {
	wait, cancel := s.waitCtx(ctx)
	defer cancel()
	sl, err := s.cache.Open(wait, key)
	if err != nil && wait.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("another was still filling it after %v: %w: %w", s.cfg.WaitMax, errdefs.ErrBusy, err)
	}
	return sl, err
}
