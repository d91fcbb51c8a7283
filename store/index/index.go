// Package index knows where blocks are and keeps them there: lookups and leases over a pipeline of
// tiers. It copies no bytes and needs no device. Package store copies the bytes under leases
// (Lease.Begin).
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
	"slices"
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
	// LeaseMax is the longest a lease may live. Default DefaultLeaseMax.
	LeaseMax time.Duration
	// Clock times leases. Default: the real one.
	Clock clockwork.Clock
	// Fallback is called when a tier failed, other than by a miss, and the index went on without
	// it. key is the block concerned, the first of several. No locks are held. May be nil.
	Fallback func(tier string, key block.Key, err error)
}

// Index looks up and pins blocks. All methods are safe for concurrent use.
type Index struct {
	c       Config
	janitor *janitor
	closing chan struct{}
	close   sync.Once
	order   *tier.Order        // shared with the tiers
	below   []tier.OrderedTier // of all tiers but the first

	leases, cut, missed, fallbacks atomic.Int64
}

// Stats counts the work of an index since it was opened.
type Stats struct {
	Leases    int64 // leases given
	Live      int
	Expired   int64 // leases that ended by their deadline
	Cut       int64 // leases that ended early because leases may hold no more slots
	Missed    int64 // requested blocks that leases did not pin
	Fallbacks int64 // failures of a tier, other than misses, after which the index went on
}

// Open returns an index over the tiers of c and starts its goroutine. Errors wrap ErrInvalid.
func Open(c Config) (*Index, error) {
	if len(c.Tiers) == 0 || slices.Contains(c.Tiers, nil) || c.LeaseMax < 0 {
		return nil, fmt.Errorf("open index of %d tiers, with leases of at most %v: %w", len(c.Tiers), c.LeaseMax, errdefs.ErrInvalid)
	}
	if c.LeaseMax == 0 {
		c.LeaseMax = DefaultLeaseMax
	}
	if c.Clock == nil {
		c.Clock = clockwork.NewRealClock()
	}
	x := &Index{c: c, janitor: newJanitor(c.Clock), closing: make(chan struct{}), order: tier.NewOrder(tier.OrderKeys)}
	for i, t := range c.Tiers {
		ordered, ok := t.(tier.OrderedTier)
		if !ok {
			continue
		}
		ordered.SetOrder(x.order)
		if i > 0 {
			x.below = append(x.below, ordered)
		}
	}
	return x, nil
}

// Close refuses new work and ends every lease. It does not wait: loads under a lease keep its pins
// until they have ended.
func (x *Index) Close() {
	x.close.Do(func() {
		close(x.closing)
		x.janitor.close()
	})
}

// Stats returns the current figures.
func (x *Index) Stats() Stats {
	live, expired := x.janitor.counts()
	return Stats{Leases: x.leases.Load(), Live: live, Expired: expired, Cut: x.cut.Load(), Missed: x.missed.Load(), Fallbacks: x.fallbacks.Load()}
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
