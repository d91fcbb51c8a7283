// Package index looks up and leases blocks in a pipeline of tiers. It copies no bytes and needs no
// device. Package store copies the bytes under leases (Lease.Begin).
//
// A Lease pins the longest ready prefix of some keys, each block in the first tier that has it,
// until a deadline. The index asks a tier for many keys at a time. The tier bounds the slots that
// leases may pin (tier.SlotTier.LimitRetained).
//
// All methods are safe for concurrent use. One goroutine ends leases at their deadlines. Close
// stops it.
package index

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// DefaultLeaseMax is the default of Config.LeaseMax.
const DefaultLeaseMax = 30 * time.Second

// Config configures an index.
type Config struct {
	// Tiers are in the order of the pipeline. The caller closes them after the index.
	Tiers []tier.Tier
	// LeaseMax bounds the duration of a lease. Default DefaultLeaseMax.
	LeaseMax time.Duration
	// Clock times leases. Default: the system clock.
	Clock clockwork.Clock
	// Fallback is called when the index continues after a failure of a tier, other than a miss. key
	// is the block concerned, or the first of several. No locks are held. May be nil.
	Fallback func(tier string, key block.Key, err error)
}

// Index looks up and pins blocks. All methods are safe for concurrent use.
type Index struct {
	c       Config
	janitor *janitor
	closing chan struct{}
	close   sync.Once
	order   *tier.Order        // shared with the tiers
	anchors *tier.Anchors      // shared with the tiers; nil if none is tier.Placed
	below   []tier.OrderedTier // of all tiers but the first

	leases, cut, missed, fallbacks atomic.Int64
}

// Stats counts the work of an index since it was opened.
type Stats struct {
	Leases    int64 // leases created
	Live      int
	Expired   int64 // leases that ended by their deadline
	Cut       int64 // leases shortened because leases may hold no more slots
	Missed    int64 // requested blocks that leases did not pin
	Fallbacks int64 // failures of a tier, other than misses, after which the index continued
}

// FellBack counts a failure of a tier and calls Config.Fallback.
func (x *Index) FellBack(t tier.Tier, key block.Key, err error) {
	x.fallbacks.Add(1)
	if x.c.Fallback != nil {
		x.c.Fallback(t.Name(), key, err)
	}
}

func (x *Index) usable() error {
	select {
	case <-x.closing:
		return errdefs.ErrClosed
	default:
		return nil
	}
}

func isBusy(err error) bool { return errors.Is(err, errdefs.ErrBusy) }

// Lease pins blocks: they are not evicted or rewritten until the lease ends. It ends by Release, at
// its deadline, or when its index closes. Loads that were started under it keep its pins until they
// end. All methods are safe for concurrent use.
type Lease struct {
	x        *Index
	keys     []block.Key
	runs     []run  // the tiers that pin keys, in the order of keys
	first    [1]run // initial memory of runs
	deadline time.Time

	mu       sync.Mutex
	ended    bool              // new loads are refused
	released bool              // the lease ended by Release
	uses     int               // number of running loads, plus one until the lease ends
	index    map[block.Key]int // indices of keys, built when keys are requested in another order
}

// run is a range of keys that one tier pins: from the end of the previous run to end.
type run struct{ tier, end int }

// janitor ends leases at their deadlines, in one goroutine.
type janitor struct {
	clock clockwork.Clock
	wake  chan struct{} // has an element if the earliest deadline may have changed
	quit  chan struct{}
	done  chan struct{}

	mu     sync.Mutex
	live   map[*Lease]struct{}
	next   time.Time // next wake-up of the goroutine
	closed bool
	// expired is the number of leases that ended at their deadline.
	expired int64
}

// Use records the order and runs of blocks for the tiers (tier.OrderedTier, tier.Placed), and
// reports the use of blocks to the tiers below the first. keys are consecutive blocks of a prompt.
// before is the key of the block before the first, or zero if there is none or it is unknown. Call
// Use before the blocks are read or written.
func (x *Index) Use(before block.Key, keys []block.Key) {
	x.note(before, keys, 0)
	x.anchors.Follow(before, keys)
	x.used(before, keys)
}

// SetAnchors records the anchors of blocks for tiers that are tier.Placed: see tier.Anchors.Set. It
// returns ErrInvalid if the lists have different lengths.
func (x *Index) SetAnchors(keys, anchors []block.Key) error {
	if len(keys) != len(anchors) {
		return fmt.Errorf("set %d anchors of %d blocks: %w", len(anchors), len(keys), errdefs.ErrInvalid)
	}
	x.anchors.Set(keys, anchors)
	return nil
}

// note records the order of keys[from:]. before precedes keys[0].
func (x *Index) note(before block.Key, keys []block.Key, from int) {
	if from == len(keys) {
		return
	}
	at := x.order.After(before, keys[0])
	if from > 0 {
		at.Before, at.Position = keys[from-1], at.Position+from
	}
	x.order.Note(keys[from:], at)
}

// used reports the use of blocks to the tiers below the first. Their own reads and writes do not
// show all uses.
func (x *Index) used(before block.Key, keys []block.Key) {
	if len(keys) == 0 {
		return
	}
	for _, t := range x.below {
		t.Use(keys, x.order.After(before, keys[0]))
	}
}
