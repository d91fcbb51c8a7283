// Package pipeline reserves and reads blocks in the tiers of a store: a cache of pinned slots, and
// the tiers below it. It does not depend on pages and streams.
package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store/admission"
	"github.com/kvlane/kvlane/store/index"
	"github.com/kvlane/kvlane/store/pages"
	"github.com/kvlane/kvlane/store/stat"
	"github.com/kvlane/kvlane/tier"
)

// Pipeline holds the tiers of a store. Its fields do not change after New.
type Pipeline struct {
	Config
	// Durable holds the writable tiers of Lower. A block is durable when all of them have it, except
	// those that failed to store it.
	Durable []tier.Tier
	// Transient is set if the cache keeps blocks only while they are in use (tier.TransientTier).
	Transient bool
	// MaxTries bounds the retries of a block after other tasks failed to fill it.
	MaxTries uint8
	// Unverified is set if a tier below can read without verification (tier.Reader).
	Unverified bool
	Count      Counters
	// Refused has the last blocks that a durable tier did not store.
	Refused *tier.Recent[Refusal]

	noWait   context.Context // an ended context, for calls of tiers that must not block
	position []int           // by index in Durable: index in the pipeline, where 0 is the cache
}

// Config configures a Pipeline.
type Config struct {
	Map      *pages.Map
	Index    *index.Index
	Cache    tier.SlotTier
	Lower    []tier.Tier // below the cache, from fast to slow
	Verify   VerifyPolicy
	Hooks    Hooks
	Tracer   Tracer // or nil
	Clock    clockwork.Clock
	WaitMax  time.Duration // longest wait for a slot, or for a block that another task fills
	LeaseMax time.Duration // longest wait for the host program while a task holds slots
	Direct   *Direct       // nil: all blocks pass through the cache
}

// Counters count events of all tasks.
type Counters struct {
	Loads, Dumps, Prefetches      atomic.Int64
	LoadErrors, DumpErrors        atomic.Int64
	Misses                        atomic.Int64 // of loads without a lease
	Dumped, Skipped, Prefetched   atomic.Int64
	Corrupt, BadCopies            atomic.Int64
	Refills, Retries              atomic.Int64
	VerifiedByCopy, VerifiedByCPU atomic.Int64
	Quarantined                   atomic.Int64
	TierErrors                    atomic.Int64
	BatchesFailed, Reopened       atomic.Int64
	Expired                       atomic.Int64   // loads
	Direct, DirectFailed          atomic.Int64   // blocks read directly; failed transfers
	DirectDumped                  atomic.Int64   // blocks
	Hits, LeftOut                 []atomic.Int64 // blocks, by tier
	LoadTimes, FreeTimes          stat.Histogram
	DurableTimes                  stat.Histogram
	LeaseTimes, LookupTimes       stat.Histogram
	LoadPaths, DumpPaths          stat.Paths
}

// The limits of retries of a block after another task failed to fill it. A block of a transient
// cache leaves it with its last user, so that retries are more frequent.
const (
	maxTries          = 3
	maxTransientTries = 200
)

// errNoWait is the cause of Pipeline.noWait.
var errNoWait = fmt.Errorf("not available without waiting: %w", errdefs.ErrBusy)

// New returns a pipeline.
func New(c Config) *Pipeline {
	p := &Pipeline{Config: c, MaxTries: maxTries, Transient: IsTransient(c.Cache), Refused: tier.NewRecent[Refusal](explained)}
	for i, t := range c.Lower {
		if r, ok := t.(tier.ReadOnlyTier); !ok || !r.ReadOnly() {
			p.Durable, p.position = append(p.Durable, t), append(p.position, 1+i)
		}
	}
	if p.Transient {
		p.MaxTries = maxTransientTries
	}
	p.Unverified = slices.ContainsFunc(c.Lower, func(t tier.Tier) bool { _, ok := t.(tier.Reader); return ok })
	noWait, cancel := context.WithCancelCause(context.Background())
	cancel(errNoWait)
	p.noWait = noWait
	p.Count.Hits, p.Count.LeftOut = make([]atomic.Int64, 1+len(c.Lower)), make([]atomic.Int64, 1+len(c.Lower))
	return p
}

// IsTransient reports whether a cache keeps blocks only while they are in use.
func IsTransient(t tier.SlotTier) bool {
	w, ok := t.(tier.TransientTier)
	return ok && w.Transient()
}

// TierName returns the name of tier i of the pipeline, where 0 is the cache.
func (p *Pipeline) TierName(i int8) string {
	if i == 0 {
		return p.Cache.Name()
	}
	return p.Lower[i-1].Name()
}

// Source returns the source of tier i of the pipeline for admission, where 0 is the cache.
func (p *Pipeline) Source(i int8) admission.Source {
	if i == 0 {
		return admission.Memory
	}
	return admission.SourceOf(p.Lower[i-1].Name())
}

// NoWait returns an ended context whose cause wraps ErrBusy.
func (p *Pipeline) NoWait() context.Context { return p.noWait }

// ObserveSince adds the time since start to a histogram.
func (p *Pipeline) ObserveSince(h *stat.Histogram, start time.Time) {
	h.Observe(p.Clock.Now().Sub(start))
}

// WithTimeout is context.WithTimeout with the clock of the pipeline.
func (p *Pipeline) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	wait, cancel := context.WithCancelCause(ctx)
	timer := p.Clock.AfterFunc(d, func() { cancel(context.DeadlineExceeded) })
	return wait, func() {
		timer.Stop()
		cancel(nil)
	}
}

// Reserve reserves a slot for key. If wait is set, it blocks for up to WaitMax until a slot is
// free; otherwise it returns ErrBusy. A caller that waits must hold no slots, except those of
// leases and layerwise dumps.
func (p *Pipeline) Reserve(ctx context.Context, key block.Key, wait bool) (tier.Fill, error) {
	f, err := p.Cache.Reserve(p.noWait, key)
	if err == nil || !IsBusy(err) {
		return f, err
	}
	if !wait {
		if !errors.Is(err, errdefs.ErrBusy) {
			err = fmt.Errorf("%w: %w", errdefs.ErrBusy, err)
		}
		return nil, err
	}
	bounded, cancel := p.WithTimeout(ctx, p.WaitMax)
	defer cancel()
	f, err = p.Cache.Reserve(bounded, key)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("no slot became free in %v: %w: %w", p.WaitMax, errdefs.ErrBusy, err)
	}
	return f, err
}

// Open pins key in the cache. While another task fills the block, it blocks for up to WaitMax. The
// caller must hold no slots, except those of leases and layerwise dumps.
func (p *Pipeline) Open(ctx context.Context, key block.Key) (tier.Slot, error) {
	bounded, cancel := p.WithTimeout(ctx, p.WaitMax)
	defer cancel()
	s, err := p.Cache.Open(bounded, key)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("another task still filled it after %v: %w: %w", p.WaitMax, errdefs.ErrBusy, err)
	}
	return s, err
}

// Publish makes a block visible to lookups. The slot of fill must hold its complete image. The
// returned slot is pinned.
func Publish(fill tier.Fill) (tier.Slot, error) {
	slot, err := fill.Publish()
	if err != nil {
		return nil, fmt.Errorf("publish: %w", err)
	}
	return slot, nil
}

// CountCorrupt counts a block that failed its check in a tier, and calls Hooks.Corrupt.
func (p *Pipeline) CountCorrupt(tierName string, key block.Key, err error) {
	p.Count.Corrupt.Add(1)
	p.Hooks.corrupt(tierName, key, err)
}

// CountBadCopy counts a copy that failed its check, and calls Hooks.BadCopy.
func (p *Pipeline) CountBadCopy(key block.Key, err error) {
	p.Count.BadCopies.Add(1)
	p.Hooks.badCopy(key, err)
}

// explained is the number of blocks whose refusals are kept for explanations.
const explained = 1 << 14

// Refusal is the failure of a tier to store a block of a dump.
type Refusal struct {
	Tier int // index in the pipeline, where 0 is the cache
	Time time.Time
	Err  error
}

// CountLeftOut counts a block that durable tier n failed to store, and calls Hooks.LeftOut.
func (p *Pipeline) CountLeftOut(n int, key block.Key, err error) {
	p.Count.LeftOut[p.position[n]].Add(1)
	p.Refused.Add(Refusal{p.position[n], p.Clock.Now(), err}, key)
	p.Hooks.leftOut(p.Durable[n].Name(), key, err)
}

// CountBatchFailure counts a failed batch, and calls Hooks.BatchFailed.
func (p *Pipeline) CountBatchFailure(direction string, err error) {
	p.Count.BatchesFailed.Add(1)
	p.Hooks.batchFailed(direction, err)
}

// CountReopened counts a stream that has replaced a broken one, and calls Hooks.StreamReopened.
func (p *Pipeline) CountReopened(direction string, cause error) {
	p.Count.Reopened.Add(1)
	p.Hooks.streamReopened(direction, cause)
}

// CountExpired counts a load that streams have stopped waiting for, and calls Hooks.LoadExpired.
func (p *Pipeline) CountExpired(err error) {
	p.Count.Expired.Add(1)
	p.Hooks.loadExpired(err)
}

// IsBusy reports whether err, returned by a call with NoWait, means that the call would have to
// wait.
func IsBusy(err error) bool {
	return errors.Is(err, errdefs.ErrBusy) || errors.Is(err, context.Canceled)
}

// IsCorrupt reports whether err means that stored bytes are not those of the requested block.
func IsCorrupt(err error) bool {
	return errors.Is(err, errdefs.ErrCorrupt) || errors.Is(err, errdefs.ErrMismatch)
}

// IsNotFound reports whether err wraps ErrNotFound.
func IsNotFound(err error) bool { return errors.Is(err, errdefs.ErrNotFound) }

// IsExists reports whether err wraps ErrExists.
func IsExists(err error) bool { return errors.Is(err, errdefs.ErrExists) }
