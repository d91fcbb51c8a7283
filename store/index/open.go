package index

import (
	"fmt"
	"slices"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// Open returns an index over the tiers of c and starts its goroutine. It returns ErrInvalid if c
// has no tiers, a nil tier or a negative LeaseMax.
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
		if placed, ok := t.(tier.Placed); ok {
			if x.anchors == nil {
				x.anchors = tier.NewAnchors(tier.OrderKeys)
			}
			placed.SetAnchors(x.anchors)
		}
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

// Close refuses new work and ends all leases. It does not wait: running loads keep the pins of
// their lease until they end.
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
