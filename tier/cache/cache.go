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

// Config says what a Tier is made of.
type Config struct {
	// Memory holds the slots, as many images as fit, of the longest where page groups differ. It needs a CPU address; for streams to
	// reach the slots it has to be pinned (device.Device.AllocHost). The tier does not free it.
	Memory *mem.Region
	// Blocks is how many slots there are where they lie in other processes, and Memory is nil: the tier knows then which blocks are
	// there, and which goes next, and nothing of their bytes. Get and Put are ErrNotSupported.
	Blocks int
	// Formats are those of the blocks kept here, one a page group.
	Formats block.Formats
	// Transient makes the tier a window: a block is forgotten once nothing pins it, so that its slot is only a place to stand in on the
	// way to or from another tier.
	Transient bool
	// Evicted is told of each block that has made room for another. It is called with the tier's lock held, and must not call the tier.
	// May be nil.
	Evicted func(key block.Key)
	// Clock tells how long a slot has been filling; nil is the machine's.
	Clock clockwork.Clock
}

// Validate reports everything that is wrong with c.
func (c *Config) Validate() error {
	var errs []error
	formatsErr := c.Formats.Validate()
	if formatsErr != nil {
		errs = append(errs, fmt.Errorf("cache: %w", formatsErr))
	}
	switch {
	case c.Memory == nil && (c.Blocks < 1 || c.Blocks > math.MaxInt32):
		errs = append(errs, fmt.Errorf("cache: no memory, and %d blocks elsewhere, where 1..2^31-1 may be: %w", c.Blocks, errdefs.ErrInvalid))
	case c.Memory == nil:
	case c.Blocks != 0:
		errs = append(errs, fmt.Errorf("cache: memory is given, and blocks that lie elsewhere: %w", errdefs.ErrInvalid))
	case c.Memory.Bytes() == nil:
		errs = append(errs, fmt.Errorf("cache: the CPU cannot reach the %s: %w", c.Memory, errdefs.ErrInvalid))
	case formatsErr == nil:
		n := c.Memory.Len() / c.Formats.MaxImageBytes()
		if n < 1 || n > math.MaxInt32 {
			errs = append(errs, fmt.Errorf("cache: %d bytes hold %d images of %d bytes; the number must be in 1..2^31-1: %w",
				c.Memory.Len(), n, c.Formats.MaxImageBytes(), errdefs.ErrInvalid))
		}
	}
	return errors.Join(errs...)
}

// Tier implements tier.SlotTier and tier.Statter. All methods are safe for concurrent use.
type Tier struct {
	formats block.Formats
	clock   clockwork.Clock
	opened  time.Time
	passing bool // see Config.Transient
	slots   mem.Slots
	closing chan struct{}  // closed by the first Close
	owned   sync.WaitGroup // goroutines that watch quarantined slots

	mu          sync.Mutex
	closed      bool
	free        []uint32            // a stack of slots
	evicted     func(key block.Key) // see Config.Evicted
	entries     []entry             // by slot
	sums        []uint64            // of the shards of each slot's block, shards words a slot
	shards      int                 // the most of a block
	index       index               // of Filling and Ready blocks
	policy      *policy
	order       *tier.Order // see SetOrder; nil: places are not known
	failed      *recent[block.Key, error]
	orphans     map[block.Key]int // retains of blocks found corrupt since
	retained    int               // slots with retains
	retainMax   int
	line        []*waiter // who waits for a slot, first come first
	quarantined map[uint32]<-chan struct{}
	stats       tier.Stats
}

// entry is what the tier knows of a slot. In state Failed the block was found corrupt and left the index, and the slot
// becomes free with its last pin; or the slot is quarantined. It is no longer than a line of the CPU's caches.
type entry struct {
	key     block.Key
	flight  *flight       // who waits for the filling; nil when nobody does
	since   time.Duration // since the tier was opened
	pins    int32         // handles given out, each of which may read the slot
	retains int32         // by Retain
	shards  uint16        // checksums of it among the tier's sums; zero where they are of another kind
	state   tier.State
}

func (e *entry) pinned() bool { return e.state != tier.Ready || e.pins > 0 || e.retains > 0 }

// maxFailures bounds the failures whose cause is remembered: they are for explaining, nothing depends on them.
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
		passing:     c.Transient,
		slots:       mem.Slots{Region: c.Memory, Stride: image},
		closing:     make(chan struct{}),
		free:        make([]uint32, n),
		evicted:     c.Evicted,
		entries:     make([]entry, n),
		sums:        make([]uint64, n*shards),
		shards:      shards,
		failed:      newRecent[block.Key, error](min(n, maxFailures)),
		orphans:     make(map[block.Key]int),
		retainMax:   n,
		quarantined: make(map[uint32]<-chan struct{}),
		stats:       tier.Stats{CapacityBytes: int64(n) * image},
	}
	t.index = newIndex(t.entries)
	for i := range t.free {
		t.free[i] = uint32(n - 1 - i) // slot 0 is taken first
	}
	t.policy = newPolicy(n)
	return t, nil
}

// Name returns "cache", and "window" of a tier that keeps nothing.
func (t *Tier) Name() string {
	if t.passing {
		return "window"
	}
	return "cache"
}

// Transient says whether blocks are forgotten once nothing pins them.
func (t *Tier) Transient() bool { return t.passing }

// Slots returns the array that the slots' numbers index.
func (t *Tier) Slots() mem.Slots { return t.slots }

// Stats returns what the tier did and holds. Open counts an image as read, though a stream does the reading.
func (t *Tier) Stats() tier.Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.stats
	s.Bytes = s.Blocks * t.slots.Stride
	s.Quarantined = int64(len(t.quarantined))
	return s
}

// Close makes every later call fail, wakes who waits, and ends the watching of quarantined slots. While a slot is pinned,
// being filled or quarantined, Close returns an error that counts them: the memory must not be freed yet. Their owners may
// still give them back, and a Close after that returns nil. It does not wait.
func (t *Tier) Close(context.Context) error {
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		close(t.closing)
		t.wakeAll(fmt.Errorf("cache: %w", errdefs.ErrClosed))
	}
	t.mu.Unlock()
	t.owned.Wait()

	t.mu.Lock()
	defer t.mu.Unlock()
	for slot, quiesced := range t.quarantined {
		if isClosed(quiesced) {
			t.unquarantine(slot)
		}
	}
	return t.outstanding()
}

// wakeAll ends every wait with err. The caller holds mu.
func (t *Tier) wakeAll(err error) {
	for _, w := range t.line {
		w.resolve(nil, err)
	}
	t.line = nil
	for i := range t.entries {
		t.entries[i].land(uint32(i), err)
	}
}

// outstanding says what keeps the memory in use, or nil. The caller holds mu.
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

// enter reports why a call may not start. The caller holds mu.
func (t *Tier) enter() error {
	if t.closed {
		return fmt.Errorf("cache: %w", errdefs.ErrClosed)
	}
	return nil
}

// at returns the slot of a block that is here and its state. The caller holds mu.
func (t *Tier) at(key *block.Key) (uint32, tier.State) {
	if slot, ok := t.index.find(key); ok {
		return slot, t.entries[slot].state
	}
	if _, failed := t.failed.get(*key); failed {
		return 0, tier.Failed
	}
	return 0, tier.Absent
}

// ask begins a question about many blocks, whose answers have room for n; nil: the caller holds mu.
func (t *Tier) ask(ctx context.Context, keys []block.Key, n int) error {
	if len(keys) != n {
		return fmt.Errorf("cache: ask for %d blocks into %d answers: %w", len(keys), n, errdefs.ErrInvalid)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("cache: ask for %d blocks: %w", n, context.Cause(ctx))
	}
	t.mu.Lock()
	err := t.enter()
	if err != nil {
		t.mu.Unlock()
	}
	return err
}

// Kept says which blocks are Ready: while the process lives there is nothing more durable here.
func (t *Tier) Kept(ctx context.Context, keys []block.Key, kept []bool) error {
	if err := t.ask(ctx, keys, len(kept)); err != nil {
		return err
	}
	defer t.mu.Unlock()
	for i := range keys {
		_, state := t.at(&keys[i])
		kept[i] = state == tier.Ready
	}
	return nil
}

// Lookup sets states[i] to the state of keys[i], all of one moment.
func (t *Tier) Lookup(ctx context.Context, keys []block.Key, states []tier.State) error {
	if err := t.ask(ctx, keys, len(states)); err != nil {
		return err
	}
	defer t.mu.Unlock()
	for i := range keys {
		_, states[i] = t.at(&keys[i])
	}
	return nil
}

// Delete removes the block. ErrNotFound where there is none, ErrBusy where it is pinned or being filled.
func (t *Tier) Delete(ctx context.Context, key block.Key) error {
	if ctx.Err() != nil {
		return fmt.Errorf("delete block %s: %w", key, context.Cause(ctx))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.enter(); err != nil {
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

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
