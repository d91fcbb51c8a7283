package file

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier/internal/usage"
)

// area is the directories that one bound is for: those of the tier that share its bound, or one that has its own. It counts what is in
// them, has it removed by a goroutine of its own, and holds back writes meanwhile.
type area struct {
	*Tier
	name  string // for messages
	dirs  []*dir
	bound int64  // in bytes; zero: none
	whole limits // of the bound; the limits of space are this tier's part
	space space
	pause usage.Pause

	kick    chan struct{} // asks the collector for a round
	rounds  chan struct{} // holds a token while a round runs; guards cold
	cold    []candidate   // found cold, the coldest first, and not removed yet
	late    late          // blocks that were written as cold as these since
	counted chan struct{} // closed after the first count
	done    chan struct{} // closed when the collector has ended
	failure atomic.Pointer[error]
	stuck   atomic.Int64 // blocks that could not be removed in the last round

	others atomic.Int64 // bytes of other folders that share the bound
	// Used by the collector, and by Close after its end.
	neighbours map[string]*neighbour // the other folders, by their paths
	yielding   bool                  // all folders are above the high watermark: share is set
	yieldedAt  time.Time
	renew      bool      // the usage records are due
	cut        bool      // bind has set the share since: they are due at once
	used       time.Time // time of the last operation in a record
	operations int64     // number of operations until then
	recordedAt time.Time // last time at which the usage records were written
	recordErr  error     // error of that write
}

func (t *Tier) newArea(name string, l limits, bound int64, dirs ...*dir) *area {
	a := &area{
		Tier: t, name: name, dirs: dirs, bound: bound, whole: l,
		space: space{limits: l, configured: l, unit: t.formats.MaxImageBytes()},
		kick:  make(chan struct{}, 1), rounds: make(chan struct{}, 1),
		counted: make(chan struct{}), done: make(chan struct{}),
	}
	if a.shared() {
		a.space.recordStep = max(1, l.most/16)
	}
	a.failure.Store(new(error))
	for _, d := range dirs {
		d.area = a
	}
	return a
}

// divide gives each directory its area, in the order of the configuration.
func (t *Tier) divide() {
	var shared []*dir
	for i, d := range t.dirs {
		own := t.cfg.dirBytes(i)
		if own == 0 {
			shared = append(shared, d)
			continue
		}
		t.areas = append(t.areas, t.newArea("directory "+d.root, t.cfg.limitsOf(own, 0, 0), own, d))
	}
	if len(shared) > 0 {
		l := t.cfg.limitsOf(t.cfg.MaxBytes, t.cfg.HighBytes, t.cfg.LowBytes)
		t.areas = append(t.areas, t.newArea("the tier", l, t.cfg.MaxBytes, shared...))
	}
}

// roomPatience is how long a write waits for room that cannot be made, since removing fails. Where blocks are merely in use it
// waits until its context ends.
const roomPatience = 10 * time.Second

// paused returns why the area does not write, or writes only in place of its own blocks; nil once
// it has room again.
func (a *area) paused() error {
	if err := a.pause.Cause(); err != nil {
		return err
	}
	if err := a.space.full(); err != nil {
		return fmt.Errorf("the disk has no room for the %d bytes that %s may use, new blocks take the place of its coldest: %w",
			a.bound, a.name, err)
	}
	return nil
}

// reserve takes the place of one block of so many bytes, waiting for room.
func (a *area) reserve(ctx context.Context, bytes int64) error {
	asked := uint64(math.MaxUint64)
	var patience <-chan time.Time
	for {
		ok, freed, wake := a.space.reserve(a.clock.Now(), bytes)
		if ok {
			return nil
		}
		// A round of removing is worth its cost only if something was freed since the last; the collector itself repeats it
		// where nothing was.
		if freed != asked {
			a.collectSoon()
			asked = freed
		}
		if patience == nil {
			ticker := a.clock.NewTicker(roomPatience)
			defer ticker.Stop()
			patience = ticker.Chan()
		}
		err := a.waitForRoom(ctx, wake, patience)
		a.space.stopWaiting()
		if err != nil {
			return err
		}
	}
}

func (a *area) waitForRoom(ctx context.Context, wake <-chan struct{}, patience <-chan time.Time) error {
	if err := a.pause.Err(a.clock.Now()); err != nil {
		return err
	}
	full := func(cause error) error {
		return fmt.Errorf("all of the %d bytes that %s may use are taken, and nothing can be removed: %w: %w",
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
