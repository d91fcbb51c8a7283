package cache

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
)

// Name is the name of the tier in pipelines.
const Name = "cache"

// Config configures a Tier.
type Config struct {
	// Memory holds the slots. A slot has the length of the longest image. The CPU must be able to
	// access the memory. Streams can access it only if it is pinned (device.Device.AllocHost). The
	// tier does not free it.
	Memory *mem.Region
	// Blocks is the number of slots if the slots are in other processes. Memory is then nil, and
	// the tier only decides which blocks are in the slots. Get and Put return ErrNotSupported.
	Blocks int
	// Formats has one format for each page group.
	Formats block.Formats
	// Transient makes the tier a window: it drops a block when its last pin ends. The slots then
	// only buffer blocks on the way to or from another tier.
	Transient bool
	// Evicted is called for each evicted block, with the tier's lock held. It must not call the
	// tier. It may be nil.
	Evicted func(key block.Key)
	// Events receives the changes of the contents, except those of a window. It may be nil.
	Events *tier.Events
	// Clock measures how long a slot has been filling. Nil selects the system clock.
	Clock clockwork.Clock
}

// Validate reports all errors of c, joined.
func (c *Config) Validate() error {
	var errs []error
	formatsErr := c.Formats.Validate()
	if formatsErr != nil {
		errs = append(errs, fmt.Errorf("cache: %w", formatsErr))
	}
	switch {
	case c.Memory == nil && (c.Blocks < 1 || c.Blocks > math.MaxInt32):
		errs = append(errs, fmt.Errorf("cache: no memory, and %d blocks in other processes: must be 1 to 2^31-1: %w", c.Blocks, errdefs.ErrInvalid))
	case c.Memory == nil:
	case c.Blocks != 0:
		errs = append(errs, fmt.Errorf("cache: both memory and blocks in other processes are given: %w", errdefs.ErrInvalid))
	case c.Memory.Bytes() == nil:
		errs = append(errs, fmt.Errorf("cache: the CPU cannot reach the %s: %w", c.Memory, errdefs.ErrInvalid))
	case formatsErr == nil:
		n := c.Memory.Len() / c.Formats.MaxImageBytes()
		if n < 1 || n > math.MaxInt32 {
			errs = append(errs, fmt.Errorf("cache: %d bytes hold %d images of %d bytes: must be 1 to 2^31-1: %w",
				c.Memory.Len(), n, c.Formats.MaxImageBytes(), errdefs.ErrInvalid))
		}
	}
	return errors.Join(errs...)
}

// Tier implements tier.SlotTier and tier.Statter. All methods are safe for concurrent use.
type Tier struct {
	formats   block.Formats
	clock     clockwork.Clock
	opened    time.Time
	transient bool // Config.Transient
	slots     mem.Slots
	closing   chan struct{}  // closed by the first Close
	watchers  sync.WaitGroup // goroutines that wait until slots leave quarantine

	mu          sync.Mutex
	closed      bool
	free        []uint32            // stack of free slots
	evicted     func(key block.Key) // Config.Evicted, or nil
	events      *tier.Events        // Config.Events; nil for a window
	entries     []entry             // by slot
	sums        []uint64            // checksums of all slots, with shards words per slot
	shards      int                 // maximum number of shards of a block
	index       index               // of Filling and Ready blocks
	policy      *policy
	order       *tier.Order // see SetOrder; may be nil
	failed      *recent[block.Key, error]
	removed     *tier.Recent[time.Duration] // times of evictions, relative to opened
	orphans     map[block.Key]int           // number of retains of blocks that were found corrupt after they were retained
	retained    int                         // number of retained slots
	retainMax   int
	waiters     []*waiter // callers that wait for a slot, in the order of their calls
	quarantined map[uint32]<-chan struct{}
	stats       tier.Stats
}

// entry describes a slot. State Failed means that the slot is in quarantine, or that its block was
// found corrupt and left the index; such a slot becomes free with its last pin. An entry fits into
// a cache line.
type entry struct {
	key     block.Key
	wait    *fillWait     // nil if no caller waits for the fill
	since   time.Duration // start of the fill, relative to Tier.opened
	pins    int32         // open handles, each of which permits reads of the slot
	retains int32         // number of retains by Retain
	// number of checksums in Tier.sums; zero if the header has no checksums of type SumTree
	shards uint16
	state  tier.State
}

func (e *entry) pinned() bool { return e.state != tier.Ready || e.pins > 0 || e.retains > 0 }

// maxFailures bounds the number of failed blocks whose cause is remembered for error messages.
const maxFailures = 1024

// Open returns an empty tier. It starts no goroutine.
func Open(c Config) (*Tier, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("open cache: %w", err)
	}
	image := c.Formats.MaxImageBytes()
	n, shards := c.Blocks, 0
	if c.Memory != nil {
		n, shards = int(c.Memory.Len()/image), c.Formats.MaxShards()
	}
	if c.Clock == nil {
		c.Clock = clockwork.NewRealClock()
	}
	t := &Tier{
		formats:     c.Formats,
		clock:       c.Clock,
		opened:      c.Clock.Now(),
		transient:   c.Transient,
		slots:       mem.Slots{Region: c.Memory, Stride: image},
		closing:     make(chan struct{}),
		free:        make([]uint32, n),
		evicted:     c.Evicted,
		entries:     make([]entry, n),
		sums:        make([]uint64, n*shards),
		shards:      shards,
		failed:      newRecent[block.Key, error](min(n, maxFailures)),
		removed:     tier.NewRecent[time.Duration](maxRemoved),
		orphans:     make(map[block.Key]int),
		retainMax:   n,
		quarantined: make(map[uint32]<-chan struct{}),
		stats:       tier.Stats{CapacityBytes: int64(n) * image},
	}
	if !c.Transient {
		t.events = c.Events
	}
	t.index = newIndex(t.entries)
	for i := range t.free {
		t.free[i] = uint32(n - 1 - i) // slot 0 is taken first
	}
	t.policy = newPolicy(n)
	return t, nil
}

// Name returns "cache", or "window" for a transient tier.
func (t *Tier) Name() string {
	if t.transient {
		return "window"
	}
	return Name
}

// Transient reports whether the tier drops a block when its last pin ends.
func (t *Tier) Transient() bool { return t.transient }

// Slots returns the array of slots.
func (t *Tier) Slots() mem.Slots { return t.slots }

// Stats returns the counters. An Open counts as a read of the whole image.
func (t *Tier) Stats() tier.Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.stats
	s.Bytes = s.Blocks * t.slots.Stride
	s.Quarantined = int64(len(t.quarantined))
	return s
}

// Close makes later calls fail and ends all waits. It does not block. While slots are pinned, being
// filled or in quarantine it returns ErrBusy with their numbers, and the memory must not be freed.
// Their owners may still release them. After that Close returns nil.
func (t *Tier) Close(context.Context) error {
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		close(t.closing)
		t.wakeAll(fmt.Errorf("cache: %w", errdefs.ErrClosed))
	}
	t.mu.Unlock()
	t.watchers.Wait()

	t.mu.Lock()
	defer t.mu.Unlock()
	for slot, quiesced := range t.quarantined {
		if isClosed(quiesced) {
			t.unquarantine(slot)
		}
	}
	return t.outstanding()
}

// wakeAll ends all waits with err. The caller holds mu.
func (t *Tier) wakeAll(err error) {
	for _, w := range t.waiters {
		w.resolve(nil, err)
	}
	t.waiters = nil
	for i := range t.entries {
		t.entries[i].wakeWaiters(uint32(i), err)
	}
}

// outstanding returns ErrBusy if slots are in use. The caller holds mu.
func (t *Tier) outstanding() error {
	var pinned, retained, filling int
	var oldest time.Duration
	for i := range t.entries {
		e := &t.entries[i]
		if e.state == tier.Filling {
			filling++
			oldest = max(oldest, t.clock.Since(t.opened)-e.since)
		}
		if e.pins > 0 {
			pinned++
		}
		retained += int(e.retains)
	}
	for _, n := range t.orphans {
		retained += n
	}
	if pinned+retained+filling+len(t.quarantined) == 0 {
		return nil
	}
	return fmt.Errorf("close cache: %d slots open, %d retains not released, %d slots being filled (the oldest for %s), %d in quarantine: %w",
		pinned, retained, filling, oldest, len(t.quarantined), errdefs.ErrBusy)
}

// checkOpen returns ErrClosed if the tier is closed. The caller holds mu.
func (t *Tier) checkOpen() error {
	if t.closed {
		return fmt.Errorf("cache: %w", errdefs.ErrClosed)
	}
	return nil
}

// at returns the state of a block, and its slot if it has one. The caller holds mu.
func (t *Tier) at(key *block.Key) (uint32, tier.State) {
	if slot, ok := t.index.find(key); ok {
		return slot, t.entries[slot].state
	}
	if _, failed := t.failed.get(*key); failed {
		return 0, tier.Failed
	}
	return 0, tier.Absent
}

// beginQuery checks the arguments of a query for keys with n results. It returns nil with mu
// locked, or an error with mu unlocked.
func (t *Tier) beginQuery(ctx context.Context, keys []block.Key, n int) error {
	if len(keys) != n {
		return fmt.Errorf("cache: query %d blocks with %d results: %w", len(keys), n, errdefs.ErrInvalid)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("cache: query %d blocks: %w", n, context.Cause(ctx))
	}
	t.mu.Lock()
	err := t.checkOpen()
	if err != nil {
		t.mu.Unlock()
	}
	return err
}

// Kept reports which blocks are Ready. In the cache they cannot become more durable.
func (t *Tier) Kept(ctx context.Context, keys []block.Key, kept []bool) error {
	if err := t.beginQuery(ctx, keys, len(kept)); err != nil {
		return err
	}
	defer t.mu.Unlock()
	for i := range keys {
		_, state := t.at(&keys[i])
		kept[i] = state == tier.Ready
	}
	return nil
}

// Lookup sets states[i] to the state of keys[i]. All states are from the same moment.
func (t *Tier) Lookup(ctx context.Context, keys []block.Key, states []tier.State) error {
	if err := t.beginQuery(ctx, keys, len(states)); err != nil {
		return err
	}
	defer t.mu.Unlock()
	for i := range keys {
		_, states[i] = t.at(&keys[i])
	}
	return nil
}

// Delete removes a block. It returns ErrNotFound if there is none, and ErrBusy if it is pinned or
// being filled.
func (t *Tier) Delete(ctx context.Context, key block.Key) error {
	if ctx.Err() != nil {
		return fmt.Errorf("delete block %s: %w", key, context.Cause(ctx))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.checkOpen(); err != nil {
		return err
	}
	slot, ok := t.index.find(&key)
	if !ok {
		t.failed.forget(key)
		return fmt.Errorf("delete block %s: %w", key, errdefs.ErrNotFound)
	}
	if e := &t.entries[slot]; e.pinned() {
		return fmt.Errorf("delete block %s: it is %s with %d pins: %w", key, e.state, e.pins+e.retains, errdefs.ErrBusy)
	}
	t.drop(slot)
	t.freeSlot(slot)
	return nil
}

// List calls yield for the key of each Ready block. A transient tier lists none, because its blocks
// leave without events.
func (t *Tier) List(ctx context.Context, yield func(key block.Key) error) error {
	var keys []block.Key
	t.mu.Lock()
	err := t.checkOpen()
	for i := range t.entries {
		if err == nil && !t.transient && t.entries[i].state == tier.Ready {
			keys = append(keys, t.entries[i].key)
		}
	}
	t.mu.Unlock()
	for i := 0; i < len(keys) && err == nil; i++ {
		if err = context.Cause(ctx); err == nil {
			err = yield(keys[i])
		}
	}
	return err
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
