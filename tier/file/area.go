package file

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/internal/usage"
)

// area holds the directories of one bound: all directories that share the tier's bound, or one
// directory with its own. It counts their blocks and delays writes at the bound. Its goroutine, the
// collector, evicts blocks.
type area struct {
	*Tier
	name  string // for messages
	dirs  []*dir
	bound int64  // in bytes; zero: none
	whole limits // limits of the whole bound; space.limits are this tier's share of it
	space space
	pause usage.Pause

	wake       chan struct{}    // wakes the collector for a round
	roundLock  chan struct{}    // holds an element during a round; guards cold
	cold       []candidate      // blocks to evict, coldest first
	recentCold recentCandidates // blocks written since the last search that are as cold as its result
	counted    chan struct{}    // closed after the first count
	done       chan struct{}    // closed when the collector has returned
	failure    atomic.Pointer[error]
	stuck      atomic.Int64 // blocks that could not be removed in the last round

	others atomic.Int64 // bytes of other folders that share the bound
	// Used by the collector, and by Close after its end.
	neighbours map[string]*neighbour // folders of other identities that share the bound, by path
	yielding   bool                  // all folders together are above the high watermark; share is set
	yieldedAt  time.Time
	renew      bool      // the usage records must be written
	cut        bool      // bind has set the share since the last write of the records, which is therefore urgent
	used       time.Time // time of the last operation in a usage record
	operations int64     // number of operations up to that time
	recordedAt time.Time // last time at which the usage records were written
	recordErr  error     // error of the last such write
}

func (t *Tier) newArea(name string, l limits, bound int64, dirs ...*dir) *area {
	a := &area{
		Tier: t, name: name, dirs: dirs, bound: bound, whole: l,
		space: space{limits: l, configured: l, unit: t.formats.MaxImageBytes()},
		wake:  make(chan struct{}, 1), roundLock: make(chan struct{}, 1),
		counted: make(chan struct{}), done: make(chan struct{}),
	}
	if a.shared() {
		a.space.recordStep = max(1, l.most/16)
	}
	a.failure.Store(new(error))
	for _, d := range dirs {
		if d.area = a; !a.cfg.ReadOnly {
			d.removals = blockdir.NewRemovals(d, bound)
		}
	}
	return a
}

// makeAreas creates the areas, in the order of the configuration.
func (t *Tier) makeAreas() {
	var shared []*dir
	for i, d := range t.dirs {
		own := t.cfg.dirBytes(i)
		if own == 0 {
			shared = append(shared, d)
			continue
		}
		t.areas = append(t.areas, t.newArea("directory "+d.root, t.cfg.limitsOf(own), own, d))
	}
	if len(shared) > 0 {
		t.areas = append(t.areas, t.newArea("the tier", t.cfg.limitsOf(t.cfg.MaxBytes), t.cfg.MaxBytes, shared...))
	}
}

// spacePatience limits the wait of a write while eviction fails. If eviction only finds blocks in
// use, the write waits until its context ends.
const spacePatience = 10 * time.Second

// paused returns the cause if writes are paused, or if the disk is full and new blocks replace old
// ones. It returns nil otherwise.
func (a *area) paused() error {
	if err := a.pause.Cause(); err != nil {
		return err
	}
	if err := a.space.full(); err != nil {
		return fmt.Errorf("the disk has no space for the %d bytes that %s may use, new blocks replace its coldest: %w",
			a.bound, a.name, err)
	}
	return nil
}

// reserve reserves space for one block. It waits while there is no space.
func (a *area) reserve(ctx context.Context, bytes int64) error {
	asked := uint64(math.MaxUint64)
	var patience <-chan time.Time
	for {
		ok, freed, wake := a.space.reserve(a.clock.Now(), bytes)
		if ok {
			return nil
		}
		// Start a round only if space was freed since the last round. Otherwise the collector
		// repeats rounds on its own.
		if freed != asked {
			a.collectSoon()
			asked = freed
		}
		if patience == nil {
			ticker := a.clock.NewTicker(spacePatience)
			defer ticker.Stop()
			patience = ticker.Chan()
		}
		err := a.waitForSpace(ctx, wake, patience)
		a.space.stopWaiting()
		if err != nil {
			return err
		}
	}
}

func (a *area) waitForSpace(ctx context.Context, wake <-chan struct{}, patience <-chan time.Time) error {
	if err := a.pause.Err(a.clock.Now()); err != nil {
		return err
	}
	full := func(cause error) error {
		return fmt.Errorf("the %d bytes that %s may use are full, and no block can be removed: %w: %w",
			a.bound, a.name, errdefs.ErrBusy, cause)
	}
	select {
	case <-wake:
		return nil
	case <-a.ctx.Done():
		return errdefs.ErrClosed
	case <-ctx.Done():
		return full(errors.Join(context.Cause(ctx), *a.failure.Load()))
	case <-patience:
		failure := *a.failure.Load()
		if failure == nil {
			return nil
		}
		err := full(failure)
		a.pause.Begin(a.clock.Now(), err)
		return err
	}
}
