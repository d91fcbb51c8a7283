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

// waiter is a call of Reserve that waits for a slot. Its result is written under mu before done is
// closed.
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

// Reserve reserves a free or evictable slot and makes the block Filling. It clears an earlier
// failure of the block. While all slots are pinned it waits, in the order of the calls. It returns
// ErrExists if the block is Ready or Filling, and ErrBusy with the cause if ctx ends first. If ctx
// has already ended it does not wait.
func (t *Tier) Reserve(ctx context.Context, key block.Key) (tier.Fill, error) {
	f, err := t.reserve(ctx, key)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (t *Tier) reserve(ctx context.Context, key block.Key) (*fill, error) {
	// ctx may have ended already: then this is an attempt without waiting.
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
		return w.fill, w.err // resolved concurrently
	}
	t.waiters = slices.DeleteFunc(t.waiters, func(o *waiter) bool { return o == w })
	return nil, fmt.Errorf("reserve a slot for block %s: all %d are pinned: %w: %w", key, len(t.entries), errdefs.ErrBusy, context.Cause(ctx))
}

// Admit implements tier.Admitter: it reports whether the block was recently requested or evicted. A
// window admits no blocks.
func (t *Tier) Admit(key block.Key) bool {
	if t.transient {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.policy.wasRequested(key)
}

// tryReserve reserves a slot, or returns a waiter if none is free.
func (t *Tier) tryReserve(key block.Key) (*fill, *waiter, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.checkOpen(); err != nil {
		return nil, nil, err
	}
	if err := t.checkAbsent(key); err != nil {
		return nil, nil, err
	}
	// If callers wait, there is no free slot, or it belongs to one of them.
	if len(t.waiters) == 0 {
		if slot, ok := t.takeSlot(); ok {
			return t.startFill(slot, key), nil, nil
		}
	}
	w := &waiter{key: key, done: make(chan struct{})}
	t.waiters = append(t.waiters, w)
	return nil, w, nil
}

// checkAbsent returns ErrExists if the block is Ready or Filling. The caller holds mu.
func (t *Tier) checkAbsent(key block.Key) error {
	if slot, ok := t.index.find(&key); ok {
		return fmt.Errorf("reserve a slot for block %s: it is %s: %w", key, t.entries[slot].state, errdefs.ErrExists)
	}
	return nil
}

// takeSlot returns an empty slot. It evicts a block if necessary. The caller holds mu.
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
		t.removed.Add(t.clock.Since(t.opened), t.entries[slot].key)
		t.drop(slot)
		t.stats.Evictions++
	}
	return slot, ok
}

// startFill makes the block Filling in slot. The caller holds mu.
func (t *Tier) startFill(slot uint32, key block.Key) *fill {
	t.entries[slot] = entry{key: key, state: tier.Filling, since: t.clock.Since(t.opened)}
	t.index.add(slot)
	t.failed.forget(key)
	t.policy.admit(slot, key)
	t.place(slot)
	return &fill{slot: slotRef{t: t, index: slot}, key: t.entries[slot].key}
}

// drop removes the unpinned Ready block from its slot, the policy and the index. The caller holds
// mu.
func (t *Tier) drop(slot uint32) {
	t.events.Removed(Name, t.entries[slot].key)
	t.policy.remove(slot)
	t.index.remove(slot)
	t.entries[slot] = entry{}
	t.stats.Blocks--
}

// freeSlot frees a slot and passes it to a waiter, if there is one. The caller holds mu.
func (t *Tier) freeSlot(slot uint32) {
	t.entries[slot] = entry{}
	t.free = append(t.free, slot)
	t.serveWaiters()
}

// serveWaiters assigns available slots to waiters. A waiter fails if another caller has begun to
// fill its block. The caller holds mu and has just made a slot available.
func (t *Tier) serveWaiters() {
	if len(t.waiters) == 0 {
		return
	}
	t.waiters = slices.DeleteFunc(t.waiters, func(w *waiter) bool {
		if err := t.checkAbsent(w.key); err != nil {
			w.resolve(nil, err)
			return true
		}
		slot, ok := t.takeSlot()
		if ok {
			w.resolve(t.startFill(slot, w.key), nil)
		}
		return ok
	})
}

// fail ends the fill of slot's block with cause and removes the block from the index. The caller
// holds mu, and must free or quarantine the slot.
func (t *Tier) fail(slot uint32, cause error) {
	e := &t.entries[slot]
	if cause == nil {
		cause = errors.New("no cause was given")
	}
	t.policy.remove(slot)
	t.index.remove(slot)
	t.failed.add(e.key, cause)
	e.state = tier.Failed
	if e.wait != nil {
		e.wakeWaiters(slot, failure(e.key, cause))
	}
}

// failure returns the error of opening a block whose fill failed or whose bytes were corrupt.
func failure(key block.Key, cause error) error {
	return fmt.Errorf("open block %s: %w: it failed: %w", key, errdefs.ErrNotFound, cause)
}
