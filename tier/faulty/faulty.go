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

// Operations of a plan.
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

// injector applies the plan before each operation. After a crash fault all operations fail.
type injector struct {
	plan    *fault.Plan
	clock   clockwork.Clock
	crashed atomic.Pointer[error]
}

// before returns the fault of an operation that is about to start, after the planned delay. If it
// returns an error, the operation must fail with that error.
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

// flip flips a bit of b, selected by the fault.
func flip(f fault.Fault, b []byte) {
	if len(b) > 0 {
		b[f.Rand%uint64(len(b))] ^= 1 << (f.Rand >> 61)
	}
}

// Tier is a tier.Tier and tier.Statter with injected faults.
type Tier struct {
	inner tier.Tier
	in    *injector
}

// New decorates t. A nil plan injects nothing. clock is used for delays; nil is the system clock.
// Close closes t.
func New(t tier.Tier, plan *fault.Plan, clock clockwork.Clock) *Tier {
	if clock == nil {
		clock = clockwork.NewRealClock()
	}
	return &Tier{inner: t, in: &injector{plan: plan, clock: clock}}
}

// Name returns the name of the inner tier.
func (t *Tier) Name() string { return t.inner.Name() }

// Stats returns the statistics of the inner tier. The plan counts injected faults.
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

// ReadOnly returns the result of the inner tier.
func (t *Tier) ReadOnly() bool {
	r, ok := t.inner.(tier.ReadOnlyTier)
	return ok && r.ReadOnly()
}

// Kept implements tier.Keeper. It reports no block if the inner tier is not a Keeper. Its operation
// is OpLookup.
func (t *Tier) Kept(ctx context.Context, keys []block.Key, kept []bool) error {
	f, err := t.in.before(ctx, OpLookup)
	if err != nil {
		return fmt.Errorf("query %d blocks: %w", len(keys), err)
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

// SetOrder passes the order to the inner tier. It never fails.
func (t *Tier) SetOrder(o *tier.Order) {
	if inner, ok := t.inner.(tier.OrderedTier); ok {
		inner.SetOrder(o)
	}
}

// Use passes the use to the inner tier. It never fails.
func (t *Tier) Use(keys []block.Key, at tier.Place) {
	if inner, ok := t.inner.(tier.OrderedTier); ok {
		inner.Use(keys, at)
	}
}

// partial joins the fault's error and the error of the processed half.
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

// Release implements tier.Tier. It never fails.
func (t *Tier) Release(keys []block.Key) { t.inner.Release(keys) }

// Get implements tier.Tier.
func (t *Tier) Get(ctx context.Context, key block.Key, dst mem.Extent) error {
	return t.get(ctx, key, dst, t.inner.Get)
}

// Read implements tier.Reader. It calls Get if the inner tier is not a Reader. Its operation is
// OpGet.
func (t *Tier) Read(ctx context.Context, key block.Key, dst mem.Extent) error {
	if r, ok := t.inner.(tier.Reader); ok {
		return t.get(ctx, key, dst, r.Read)
	}
	return t.get(ctx, key, dst, t.inner.Get)
}

func (t *Tier) get(ctx context.Context, key block.Key, dst mem.Extent, inner func(context.Context, block.Key, mem.Extent) error) error {
	f, err := t.in.before(ctx, OpGet)
	if err != nil {
		return fmt.Errorf("get block %s: %w", key, err)
	}
	err = inner(ctx, key, dst)
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
	if spoiled, err := t.putFaulty(ctx, f, key, src); spoiled {
		return err
	}
	return t.inner.Put(ctx, key, src)
}

// putFaulty stores src as changed by the fault. It returns false if the fault does not change the
// image.
func (t *Tier) putFaulty(ctx context.Context, f fault.Fault, key block.Key, src mem.Extent) (spoiled bool, err error) {
	switch f.Action {
	case fault.Partial:
		return true, partial(f, t.putChanged(ctx, key, src, func(b []byte) { clear(b[len(b)/2:]) }))
	case fault.Corrupt:
		return true, t.putChanged(ctx, key, src, func(b []byte) { flip(f, b) })
	default:
		return false, nil
	}
}

// PutMany implements tier.ManyPutter. It calls Put if the inner tier is not a ManyPutter. Each
// block is an OpPut. Blocks without a fault are stored by one call.
func (t *Tier) PutMany(ctx context.Context, keys []block.Key, srcs []mem.Extent, errs []error) {
	if len(srcs) != len(keys) || len(errs) != len(keys) {
		for i := range errs {
			errs[i] = fmt.Errorf("put %d blocks of %d extents into %d errors: %w", len(keys), len(srcs), len(errs), errdefs.ErrInvalid)
		}
		return
	}
	var at []int
	var well []block.Key
	var from []mem.Extent
	for i, key := range keys {
		f, err := t.in.before(ctx, OpPut)
		failed := err != nil
		if !failed {
			failed, err = t.putFaulty(ctx, f, key, srcs[i])
		}
		if errs[i] = err; !failed {
			at, well, from = append(at, i), append(well, key), append(from, srcs[i])
		}
	}
	m, able := t.inner.(tier.ManyPutter)
	if !able {
		for k, i := range at {
			errs[i] = t.inner.Put(ctx, well[k], from[k])
		}
		return
	}
	got := make([]error, len(well))
	m.PutMany(ctx, well, from, got)
	for k, i := range at {
		errs[i] = got[k]
	}
}

// putChanged stores a copy of src that spoil has changed. src must not change.
func (t *Tier) putChanged(ctx context.Context, key block.Key, src mem.Extent, spoil func([]byte)) (err error) {
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

// Close closes the inner tier. It injects no faults.
func (t *Tier) Close(ctx context.Context) error { return t.inner.Close(ctx) }
