package mem

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/kvlane/kvlane/errdefs"
)

const (
	// DefaultArenaBlockBytes is the default size of a block.
	DefaultArenaBlockBytes = 512 << 10
	// DefaultArenaRegionBytes is the default size of a region.
	DefaultArenaRegionBytes = 1 << 30
	// DefaultArenaRegions is the default number of regions.
	DefaultArenaRegions = 32
	// DefaultArenaIdle is the default time after which an unused region is freed.
	DefaultArenaIdle = 10 * time.Second

	arenaAlign     = 4 << 10 // of the first block of a region
	maxArenaBlocks = math.MaxInt32
)

// ArenaHooks allocate and register the regions of an Arena, because package mem imports neither
// devices nor NICs. The arena holds no lock during a call, and calls one hook at a time for each
// region.
type ArenaHooks struct {
	// Alloc allocates a region, and Free frees it. Both are required.
	Alloc func(bytes int64) (*Region, error)
	Free  func(r *Region) error
	// Register registers a region with a NIC and returns its local key, and Deregister undoes that.
	// Nil: no NIC uses the memory, and keys are zero.
	Register   func(r *Region) (key uint32, err error)
	Deregister func(ctx context.Context, r *Region) error
	// Kept is called to log an error that prevents a region from being freed. It may be nil.
	Kept func(err error)
}

// ArenaOptions are the options of an Arena. Zero values are the defaults, except for the hooks.
type ArenaOptions struct {
	BlockBytes  int64         // length of a block
	RegionBytes int64         // length of a region
	MaxRegions  int           // bound of the regions at a time
	Idle        time.Duration // time after which an unused region is freed
	Hooks       ArenaHooks
}

// Arena lends blocks of equal length from regions that it allocates and registers on demand. While
// all blocks are lent and no region may be added, callers wait. All methods are safe for concurrent
// use.
type Arena struct {
	o ArenaOptions

	mu      sync.Mutex
	regions []*arenaRegion // a block is taken from the first one that has one
	left    []*arenaRegion // regions that could not be freed; Close retries them
	waiters []*arenaWaiter // in the order of their calls
	growing bool           // a goroutine adds a region
	freeing int            // regions that are being freed
	timed   bool           // a timer will call trim
	closing bool
	loans   uint32 // number of the last loan
	work    sync.WaitGroup
	stats   ArenaStats
}

// ArenaStats describes an Arena.
type ArenaStats struct {
	Regions   int   // regions at present
	Bytes     int64 // length of these regions
	Blocks    int   // blocks of these regions
	Lent      int   // lent blocks
	HighWater int   // most blocks lent at a time
	Waiting   int   // calls of Acquire that are waiting
	Waits     int64 // calls of Acquire that have waited
	Grown     int64 // regions added
	Failed    int64 // regions that could not be added
	Trimmed   int64 // regions freed because they were not used
	Kept      int   // regions that could not be freed
}

// arenaRegion is a region with its blocks.
type arenaRegion struct {
	region     *Region
	key        uint32
	registered bool
	slots      Slots
	free       []uint32 // stack of free blocks
	lent       []uint32 // by block: number of its loan, or zero while the block is free
	unused     time.Time
}

func (r *arenaRegion) isUnused() bool { return len(r.free) == len(r.lent) }

// ArenaBlock is a lent block. It has one owner at a time, and may be copied.
type ArenaBlock struct {
	arena  *Arena
	region *arenaRegion
	index  uint32
	loan   uint32
}

// arenaWaiter is a waiting call of Acquire. Its result is written under mu before done is closed.
type arenaWaiter struct {
	done  chan struct{}
	block ArenaBlock
	err   error
}

// NewArena returns an arena without regions. It returns ErrInvalid for options out of range.
func NewArena(o ArenaOptions) (*Arena, error) {
	if o.BlockBytes == 0 {
		o.BlockBytes = DefaultArenaBlockBytes
	}
	if o.RegionBytes == 0 {
		o.RegionBytes = max(DefaultArenaRegionBytes, o.BlockBytes)
	}
	if o.MaxRegions == 0 {
		o.MaxRegions = DefaultArenaRegions
	}
	if o.Idle == 0 {
		o.Idle = DefaultArenaIdle
	}
	h := &o.Hooks
	switch {
	case h.Alloc == nil || h.Free == nil || (h.Register == nil) != (h.Deregister == nil):
		return nil, fmt.Errorf("open arena: hooks without their counterparts: %w", errdefs.ErrInvalid)
	case o.BlockBytes < 0 || o.BlockBytes > math.MaxUint32 || o.RegionBytes < o.BlockBytes || o.RegionBytes/o.BlockBytes > maxArenaBlocks ||
		o.MaxRegions < 0 || o.Idle < 0:
		return nil, fmt.Errorf("open arena of %d regions of %d bytes with blocks of %d: %w", o.MaxRegions, o.RegionBytes, o.BlockBytes, errdefs.ErrInvalid)
	}
	return &Arena{o: o}, nil
}

// BlockBytes returns the length of a block.
func (a *Arena) BlockBytes() int64 { return a.o.BlockBytes }

// Stats returns the statistics of the arena.
func (a *Arena) Stats() ArenaStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.stats
	s.Regions, s.Waiting, s.Kept = len(a.regions), len(a.waiters), len(a.left)
	for _, r := range a.regions {
		s.Bytes += r.region.Len()
		s.Blocks += len(r.lent)
	}
	return s
}

// Acquire lends a block. If none is free it adds a region, or waits in the order of the calls. If
// ctx ends first, it returns ErrBusy with the cause. If a region cannot be added, the waiting calls
// return the error of the hook. It returns ErrClosed after Close was called.
func (a *Arena) Acquire(ctx context.Context) (ArenaBlock, error) {
	b, w, err := a.acquireOrQueue()
	if w == nil {
		return b, err
	}
	select {
	case <-w.done:
		return w.block, w.err
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	at := slices.Index(a.waiters, w)
	if at < 0 {
		return w.block, w.err // resolved concurrently
	}
	a.waiters = slices.Delete(a.waiters, at, at+1)
	return ArenaBlock{}, fmt.Errorf("acquire a block: all %d are lent: %w: %w", a.stats.Lent, errdefs.ErrBusy, context.Cause(ctx))
}

func (a *Arena) acquireOrQueue() (ArenaBlock, *arenaWaiter, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closing {
		return ArenaBlock{}, nil, errArenaClosed
	}
	if len(a.waiters) == 0 {
		for _, r := range a.regions {
			if len(r.free) > 0 {
				return a.lend(r), nil, nil
			}
		}
	}
	w := &arenaWaiter{done: make(chan struct{})}
	a.waiters = append(a.waiters, w)
	a.stats.Waits++
	a.startGrowing()
	return ArenaBlock{}, w, nil
}

var errArenaClosed = fmt.Errorf("acquire a block: the arena is closed: %w", errdefs.ErrClosed)

// startGrowing adds a region if calls wait and the bound allows it. The caller holds mu.
func (a *Arena) startGrowing() {
	if a.growing || a.closing || len(a.waiters) == 0 || len(a.regions)+len(a.left)+a.freeing >= a.o.MaxRegions {
		return
	}
	a.growing = true
	a.work.Go(a.grow)
}

// grow adds a region. The allocation and the registration take long and happen without the lock.
func (a *Arena) grow() {
	r, err := a.open()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.growing = false
	if err != nil {
		a.stats.Failed++
		a.fail(fmt.Errorf("acquire a block: add a region of %d bytes: %w", a.o.RegionBytes, err))
		return
	}
	a.stats.Grown++
	a.regions = append(a.regions, r)
	a.serve(r)
	if r.isUnused() { // the callers have gone
		a.markUnused(r)
	}
	a.startGrowing()
}

// open allocates and registers a region.
func (a *Arena) open() (*arenaRegion, error) {
	region, err := a.o.Hooks.Alloc(a.o.RegionBytes)
	if err != nil {
		return nil, err
	}
	r := &arenaRegion{region: region}
	if err := a.prepare(r); err != nil {
		return nil, errors.Join(err, a.drop(context.Background(), r))
	}
	return r, nil
}

// prepare divides a region into blocks and registers it.
func (a *Arena) prepare(r *arenaRegion) (err error) {
	addr := uint64(r.region.Dev())
	if addr == 0 {
		addr = uint64(r.region.CPU())
	}
	base := int64(-addr % arenaAlign)
	n := (r.region.Len() - base) / a.o.BlockBytes
	if base+a.o.BlockBytes > r.region.Len() || n > maxArenaBlocks {
		return fmt.Errorf("the %s has no space for blocks of %d bytes: %w", r.region, a.o.BlockBytes, errdefs.ErrInvalid)
	}
	r.slots = Slots{Region: r.region, Base: base, Stride: a.o.BlockBytes}
	r.free, r.lent = make([]uint32, n), make([]uint32, n)
	for i := range r.free {
		r.free[i] = uint32(n) - 1 - uint32(i)
	}
	if a.o.Hooks.Register != nil {
		if r.key, err = a.o.Hooks.Register(r.region); err != nil {
			return err
		}
		r.registered = true
	}
	return nil
}

// drop deregisters and frees a region, or keeps it if that fails.
func (a *Arena) drop(ctx context.Context, r *arenaRegion) (err error) {
	if r.registered {
		if err = a.o.Hooks.Deregister(ctx, r.region); err == nil {
			r.registered = false
		}
	}
	if err == nil {
		err = a.o.Hooks.Free(r.region)
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("free the %s: %w", r.region, err)
	a.mu.Lock()
	a.left = append(a.left, r)
	a.mu.Unlock()
	if a.o.Hooks.Kept != nil {
		a.o.Hooks.Kept(err)
	}
	return err
}

// lend lends a block of r. The caller holds mu.
func (a *Arena) lend(r *arenaRegion) ArenaBlock {
	n := len(r.free) - 1
	i := r.free[n]
	r.free = r.free[:n]
	if a.loans++; a.loans == 0 { // zero marks free blocks
		a.loans++
	}
	r.lent[i] = a.loans
	a.stats.Lent++
	a.stats.HighWater = max(a.stats.HighWater, a.stats.Lent)
	return ArenaBlock{a, r, i, a.loans}
}

// serve lends blocks of r to waiting calls. The caller holds mu.
func (a *Arena) serve(r *arenaRegion) {
	for len(a.waiters) > 0 && len(r.free) > 0 {
		w := a.waiters[0]
		a.waiters = slices.Delete(a.waiters, 0, 1)
		w.block = a.lend(r)
		close(w.done)
	}
}

// fail ends all waiting calls. The caller holds mu.
func (a *Arena) fail(err error) {
	for _, w := range a.waiters {
		w.err = err
		close(w.done)
	}
	a.waiters = nil
}

// markUnused frees r later, if it stays unused. The caller holds mu.
func (a *Arena) markUnused(r *arenaRegion) {
	r.unused = time.Now()
	a.startTimer(a.o.Idle)
}

// startTimer calls trim later, unless another timer will. The caller holds mu.
func (a *Arena) startTimer(d time.Duration) {
	if !a.timed {
		a.timed = true
		time.AfterFunc(d, a.trim)
	}
}

// trim frees the regions that have been unused for long enough.
func (a *Arena) trim() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timed = false
	if a.closing {
		return
	}
	now, left := time.Now(), time.Duration(0)
	var unused []*arenaRegion
	a.regions = slices.DeleteFunc(a.regions, func(r *arenaRegion) bool {
		if !r.isUnused() {
			return false
		}
		if d := r.unused.Add(a.o.Idle).Sub(now); d > 0 {
			left = max(left, d)
			return false
		}
		unused = append(unused, r)
		return true
	})
	if left > 0 {
		a.startTimer(left)
	}
	a.stats.Trimmed += int64(len(unused))
	a.freeing = len(unused)
	a.work.Add(1)
	defer a.work.Done()
	a.mu.Unlock()
	for _, r := range unused {
		_ = a.drop(context.Background(), r) // Close returns its error
	}
	a.mu.Lock()
	a.freeing = 0
	a.startGrowing()
}

// Close refuses new loans, waits for regions that are being added or freed, and frees all regions.
// It returns ErrBusy while blocks are lent, and the errors of the hooks, and may be called again.
// ctx is that of Deregister. A second Close after success returns nil.
func (a *Arena) Close(ctx context.Context) error {
	a.mu.Lock()
	a.closing = true
	a.fail(errArenaClosed)
	a.mu.Unlock()
	a.work.Wait()
	a.mu.Lock()
	if n := a.stats.Lent; n > 0 {
		a.mu.Unlock()
		return fmt.Errorf("close arena: %d blocks are lent: %w", n, errdefs.ErrBusy)
	}
	all := append(a.regions, a.left...)
	a.regions, a.left = nil, nil
	a.mu.Unlock()
	var errs []error
	for _, r := range all {
		errs = append(errs, a.drop(ctx, r))
	}
	return errors.Join(errs...)
}

// Extent returns the memory of the block.
func (b ArenaBlock) Extent() Extent { return b.region.slots.At(b.index) }

// Key returns the result of ArenaHooks.Register for the block's region.
func (b ArenaBlock) Key() uint32 { return b.region.key }

// Release ends the loan. Hardware must no longer access the block. Release panics if the loan has
// already ended, because the block may have another owner.
func (b ArenaBlock) Release() {
	a, r := b.arena, b.region
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.lent[b.index] != b.loan {
		panic(fmt.Sprintf("mem: block %d of an arena is released after its loan has ended", b.index))
	}
	r.lent[b.index] = 0
	r.free = append(r.free, b.index)
	a.stats.Lent--
	a.serve(r)
	if r.isUnused() {
		a.markUnused(r)
	}
}
