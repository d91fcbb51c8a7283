package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// waiter is a Reserve that stands in line for a slot. Its result is written under mu before done is closed.
type waiter struct {
	key  block.Key
	done chan struct{}
	fill *fill
	err  error
}

func (w *waiter) resolve(f *fill, err error) {
	w.fill, w.err = f, err
	close(w.done)
}

// Reserve takes a free or evictable slot and makes the block Filling; what is known of an earlier failure of the block is
// forgotten. While every slot is pinned it waits in line, in the order of the calls. ErrExists when the block is Ready or
// Filling, ErrBusy with the context's cause when ctx ends first; with a ctx that has ended, Reserve does not wait.
func (t *Tier) Reserve(ctx context.Context, key block.Key) (tier.Fill, error) {
	f, err := t.reserve(ctx, key)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (t *Tier) reserve(ctx context.Context, key block.Key) (*fill, error) {
	// A context that has ended is not refused here: the contract makes it a try without waiting.
	f, w, err := t.tryReserve(key)
	if w == nil {
		return f, err
	}
	select {
	case <-w.done:
		return w.fill, w.err
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if isClosed(w.done) {
		return w.fill, w.err // it came to the head of the line just now
	}
	t.line = slices.DeleteFunc(t.line, func(o *waiter) bool { return o == w })
	return nil, fmt.Errorf("reserve a slot for block %s: all %d are pinned: %w: %w", key, len(t.entries), errdefs.ErrBusy, context.Cause(ctx))
}

// tryReserve reserves a slot or, where there is none, joins the line.
func (t *Tier) tryReserve(key block.Key) (*fill, *waiter, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.enter(); err != nil {
		return nil, nil, err
	}
	if err := t.vacant(key); err != nil {
		return nil, nil, err
	}
	// With others in line there is no slot to be had, and if there were it would be theirs.
	if len(t.line) == 0 {
		if slot, ok := t.takeSlot(); ok {
			return t.begin(slot, key), nil, nil
		}
	}
	w := &waiter{key: key, done: make(chan struct{})}
	t.line = append(t.line, w)
	return nil, w, nil
}

// vacant reports whether the block is neither here nor on its way. The caller holds mu.
func (t *Tier) vacant(key block.Key) error {
	if slot, ok := t.index.find(&key); ok {
		return fmt.Errorf("reserve a slot for block %s: it is %s: %w", key, t.entries[slot].state, errdefs.ErrExists)
	}
	return nil
}

// takeSlot returns a slot that holds nothing, evicting a block if it must. The caller holds mu.
func (t *Tier) takeSlot() (uint32, bool) {
	if n := len(t.free) - 1; n >= 0 {
		slot := t.free[n]
		t.free = t.free[:n]
		return slot, true
	}
	slot, ok := t.policy.victim()
	if ok {
		if t.evicted != nil {
			t.evicted(t.entries[slot].key)
		}
		t.drop(slot)
		t.stats.Evictions++
	}
	return slot, ok
}

// begin makes the block Filling in slot. The caller holds mu.
func (t *Tier) begin(slot uint32, key block.Key) *fill {
	t.entries[slot] = entry{key: key, state: tier.Filling, since: t.clock.Since(t.opened)}
	t.index.add(slot)
	t.failed.forget(key)
	t.policy.admit(slot, key)
	t.place(slot)
	return &fill{slot: slotRef{t: t, index: slot}, key: t.entries[slot].key}
}

// drop takes the unpinned Ready block out of its slot, the policy and the index. The caller holds
// mu.
func (t *Tier) drop(slot uint32) {
	t.policy.remove(slot)
	t.index.remove(slot)
	t.entries[slot] = entry{}
	t.stats.Blocks--
}

// freeSlot puts a slot that holds nothing back and serves the line. The caller holds mu.
func (t *Tier) freeSlot(slot uint32) {
	t.entries[slot] = entry{}
	t.free = append(t.free, slot)
	t.serveLine()
}

// serveLine gives slots to those in line while there are any, and turns away those whose block somebody else has begun
// since. The caller holds mu and has just made a slot free or evictable.
func (t *Tier) serveLine() {
	if len(t.line) == 0 {
		return
	}
	t.line = slices.DeleteFunc(t.line, func(w *waiter) bool {
		if err := t.vacant(w.key); err != nil {
			w.resolve(nil, err)
			return true
		}
		slot, ok := t.takeSlot()
		if ok {
			w.resolve(t.begin(slot, w.key), nil)
		}
		return ok
	})
}

// fail ends the filling of slot's block with cause and takes the block out of the index. The caller holds mu and sees to
// the slot.
func (t *Tier) fail(slot uint32, cause error) {
	e := &t.entries[slot]
	if cause == nil {
		cause = errors.New("no cause was given")
	}
	t.policy.remove(slot)
	t.index.remove(slot)
	t.failed.add(e.key, cause)
	e.state = tier.Failed
	if e.flight != nil {
		e.land(slot, failure(e.key, cause))
	}
}

// failure is the error of who asks for a block whose filling failed or whose bytes were corrupt.
func failure(key block.Key, cause error) error {
	return fmt.Errorf("open block %s: %w: it failed: %w", key, errdefs.ErrNotFound, cause)
}
