package faulty

import (
	"context"
	"fmt"
	"slices"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
)

// SlotTier is a tier.SlotTier with injected faults.
type SlotTier struct {
	*Tier
	slots tier.SlotTier
}

// NewSlots is New for a tier with slots.
func NewSlots(t tier.SlotTier, plan *fault.Plan, clock clockwork.Clock) *SlotTier {
	return &SlotTier{Tier: New(t, plan, clock), slots: t}
}

// Slots implements tier.SlotTier.
func (t *SlotTier) Slots() mem.Slots { return t.slots.Slots() }

// Transient returns the result of the inner tier.
func (t *SlotTier) Transient() bool {
	w, ok := t.slots.(tier.TransientTier)
	return ok && w.Transient()
}

// LimitRetained implements tier.SlotTier. It never fails.
func (t *SlotTier) LimitRetained(slots int) { t.slots.LimitRetained(slots) }

// OpenReady implements tier.SlotTier. It is one OpOpen for all its blocks.
func (t *SlotTier) OpenReady(ctx context.Context, keys []block.Key, slots []tier.Slot, states []tier.State) error {
	f, err := t.in.before(ctx, OpOpen)
	if err != nil {
		return fmt.Errorf("open %d blocks: %w", len(keys), err)
	}
	err = t.slots.OpenReady(ctx, keys, slots, states)
	if err == nil && f.Action == fault.Corrupt {
		if i := slices.IndexFunc(slots, func(s tier.Slot) bool { return s != nil }); i >= 0 {
			flip(f, slots[i].Extent().Bytes())
		}
	}
	if f.Action != fault.Partial {
		return err
	}
	for i, slot := range slots {
		if err == nil && slot != nil {
			slot.Release()
			slots[i] = nil
		}
	}
	return partial(f, err)
}

// Open implements tier.SlotTier.
func (t *SlotTier) Open(ctx context.Context, key block.Key) (tier.Slot, error) {
	f, err := t.in.before(ctx, OpOpen)
	if err != nil {
		return nil, fmt.Errorf("open block %s: %w", key, err)
	}
	slot, err := t.slots.Open(ctx, key)
	switch {
	case f.Action == fault.Partial:
		if err == nil {
			slot.Release()
		}
		return nil, partial(f, err)
	case f.Action == fault.Corrupt && err == nil:
		flip(f, slot.Extent().Bytes())
	}
	return slot, err
}

// ReleaseSlots implements tier.SlotTier. It never fails.
func (t *SlotTier) ReleaseSlots(slots []tier.Slot) { t.slots.ReleaseSlots(slots) }

// Reserve implements tier.SlotTier.
func (t *SlotTier) Reserve(ctx context.Context, key block.Key) (tier.Fill, error) {
	f, err := t.in.before(ctx, OpReserve)
	if err != nil {
		return nil, fmt.Errorf("reserve a slot for block %s: %w", key, err)
	}
	fl, err := t.slots.Reserve(ctx, key)
	if f.Action == fault.Partial {
		if err == nil {
			fl.Abort(f.Err)
		}
		return nil, partial(f, err)
	}
	if err != nil {
		return nil, err
	}
	return &fill{Fill: fl, in: t.in}, nil
}

// fill is a tier.Fill whose Publish can fail. Publish has no context, so a stall ends only when the
// plan releases it.
type fill struct {
	tier.Fill
	in *injector
}

// Publish publishes the fill, or aborts it with an injected error.
func (f *fill) Publish() (tier.Slot, error) {
	ft, err := f.in.before(context.Background(), OpPublish)
	if err == nil && ft.Action == fault.Partial {
		err = ft.Err
	}
	if err != nil {
		f.Abort(err)
		return nil, fmt.Errorf("publish slot %d: %w", f.Index(), err)
	}
	if ft.Action == fault.Corrupt {
		flip(ft, f.Extent().Bytes())
	}
	return f.Fill.Publish()
}
