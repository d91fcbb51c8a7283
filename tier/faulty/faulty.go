package faulty

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
)

// The operations that a plan may name.
const (
	OpLookup  = "lookup"
	OpRetain  = "retain"
	OpGet     = "get"
	OpPut     = "put"
	OpDelete  = "delete"
	OpOpen    = "open"
	OpReserve = "reserve"
	OpPublish = "publish"
)

// injector does what all operations share: ask the plan, wait, and remember a crash.
type injector struct {
	plan    *fault.Plan
	clock   clockwork.Clock
	crashed atomic.Pointer[error]
}

// before returns the fault of an operation that is about to start, once it has waited as planned. The error is why the
// operation must not start.
func (i *injector) before(ctx context.Context, op string) (fault.Fault, error) {
	if err := i.crashed.Load(); err != nil {
		return fault.Fault{}, *err
	}
	f, hit := i.plan.Hit(op)
	if !hit {
		return f, nil
	}
	switch f.Action {
	case fault.Fail:
		return f, f.Err
	case fault.Crash:
		i.crashed.CompareAndSwap(nil, &f.Err)
		return f, f.Err
	case fault.Stall:
		return f, f.Wait(ctx)
	case fault.Delay:
		select {
		case <-i.clock.After(f.Delay):
		case <-ctx.Done():
			return f, context.Cause(ctx)
		}
	case fault.Partial, fault.Corrupt:
	}
	return f, nil
}

// flip flips a bit of b that the fault chooses.
func flip(f fault.Fault, b []byte) {
	if len(b) > 0 {
		b[f.Rand%uint64(len(b))] ^= 1 << (f.Rand >> 61)
	}
}

// Tier is a tier.Tier, and a tier.Statter, whose operations go wrong by plan.
type Tier struct {
	inner tier.Tier
	in    *injector
}

// New returns t decorated. A nil plan injects nothing; clock is for delays, nil is the machine's. Close closes t.
func New(t tier.Tier, plan *fault.Plan, clock clockwork.Clock) *Tier {
	if clock == nil {
		clock = clockwork.NewRealClock()
	}
	return &Tier{inner: t, in: &injector{plan: plan, clock: clock}}
}

// Name returns the name of the tier beneath.
func (t *Tier) Name() string { return t.inner.Name() }

// Stats returns what the tier beneath counted; injected faults are counted by the plan.
func (t *Tier) Stats() tier.Stats {
	if s, ok := t.inner.(tier.Statter); ok {
		return s.Stats()
	}
	return tier.Stats{}
}

// Lookup implements tier.Tier.
func (t *Tier) Lookup(ctx context.Context, keys []block.Key, states []tier.State) error {
	f, err := t.in.before(ctx, OpLookup)
	if err != nil {
		return fmt.Errorf("look up %d blocks: %w", len(keys), err)
	}
	if f.Action == fault.Partial {
		half := min(len(keys), len(states)) / 2
		return partial(f, t.inner.Lookup(ctx, keys[:half], states[:half]))
	}
	return t.inner.Lookup(ctx, keys, states)
}

// ReadOnly says what the tier beneath says.
func (t *Tier) ReadOnly() bool {
	r, ok := t.inner.(tier.ReadOnlyTier)
	return ok && r.ReadOnly()
}

// Kept implements tier.Keeper, where the tier beneath does; else nothing is known. It goes wrong as a Lookup does.
func (t *Tier) Kept(ctx context.Context, keys []block.Key, kept []bool) error {
	f, err := t.in.before(ctx, OpLookup)
	if err != nil {
		return fmt.Errorf("ask for %d blocks: %w", len(keys), err)
	}
	if f.Action == fault.Partial {
		clear(kept)
		return f.Err
	}
	if k, ok := t.inner.(tier.Keeper); ok {
		return k.Kept(ctx, keys, kept)
	}
	clear(kept)
	return nil
}

// partial is the error of an operation that did half of its work, and the other half's too if that went wrong by itself.
func partial(f fault.Fault, err error) error {
	if err == nil {
		return f.Err
	}
	return fmt.Errorf("%w: %w", f.Err, err)
}

// Retain implements tier.Tier.
func (t *Tier) Retain(ctx context.Context, keys []block.Key) (int, error) {
	f, err := t.in.before(ctx, OpRetain)
	if err != nil {
		return 0, fmt.Errorf("retain %d blocks: %w", len(keys), err)
	}
	if f.Action == fault.Partial {
		n, err := t.inner.Retain(ctx, keys[:len(keys)/2])
		return n, partial(f, err)
	}
	return t.inner.Retain(ctx, keys)
}

// Release implements tier.Tier. It never goes wrong.
func (t *Tier) Release(keys []block.Key) { t.inner.Release(keys) }

// Get implements tier.Tier.
func (t *Tier) Get(ctx context.Context, key block.Key, dst mem.Extent) error {
	f, err := t.in.before(ctx, OpGet)
	if err != nil {
		return fmt.Errorf("get block %s: %w", key, err)
	}
	err = t.inner.Get(ctx, key, dst)
	switch {
	case f.Action == fault.Partial:
		if err == nil {
			b := dst.Bytes()
			clear(b[len(b)/2:])
		}
		return partial(f, err)
	case f.Action == fault.Corrupt && err == nil:
		flip(f, dst.Bytes())
	}
	return err
}

// Put implements tier.Tier.
func (t *Tier) Put(ctx context.Context, key block.Key, src mem.Extent) error {
	f, err := t.in.before(ctx, OpPut)
	if err != nil {
		return fmt.Errorf("put block %s: %w", key, err)
	}
	switch f.Action {
	case fault.Partial:
		return partial(f, t.putSpoiled(ctx, key, src, func(b []byte) { clear(b[len(b)/2:]) }))
	case fault.Corrupt:
		return t.putSpoiled(ctx, key, src, func(b []byte) { flip(f, b) })
	default:
		return t.inner.Put(ctx, key, src)
	}
}

// putSpoiled puts a spoiled copy of src, which is the caller's and must not change.
func (t *Tier) putSpoiled(ctx context.Context, key block.Key, src mem.Extent, spoil func([]byte)) (err error) {
	if err := src.Validate(); err != nil {
		return err
	}
	if src.Len == 0 || src.Bytes() == nil {
		return fmt.Errorf("put block %s: no host memory to spoil: %w", key, errdefs.ErrInvalid)
	}
	b, err := hostmem.Alloc(src.Len)
	if err != nil {
		return err
	}
	defer func() {
		if freeErr := hostmem.Free(b); err == nil {
			err = freeErr
		}
	}()
	r, err := hostmem.Region(b)
	if err != nil {
		return err
	}
	copy(b, src.Bytes())
	spoil(b)
	return t.inner.Put(ctx, key, mem.All(r))
}

// Delete implements tier.Tier.
func (t *Tier) Delete(ctx context.Context, key block.Key) error {
	f, err := t.in.before(ctx, OpDelete)
	if err != nil {
		return fmt.Errorf("delete block %s: %w", key, err)
	}
	err = t.inner.Delete(ctx, key)
	if f.Action == fault.Partial {
		return partial(f, err)
	}
	return err
}

// Close closes the tier beneath. It never goes wrong by itself.
func (t *Tier) Close(ctx context.Context) error { return t.inner.Close(ctx) }
