package store

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/tier"
)

// Remove removes blocks from all tiers: from those below the cache, the last one first, and then
// from the cache. When it returns, a removed block is not found again until it is dumped again. In
// directories this holds after a power failure too. A dump that is in progress may store its
// blocks afterwards. Missing blocks are skipped.
//
// Remove does not wait for other tasks. Blocks that are leased, loaded or dumped at the time stay,
// and so do those that a tier cannot remove: tier.Removed.Left has the reasons, and wraps ErrBusy
// for blocks in use. A block that stays in one tier may be removed from others.
//
// Errors: ErrReadOnly if a tier is read-only, ErrInvalid for a zero key, ErrClosed, the cause of
// ctx. After an error some of the blocks may be removed.
func (s *Store) Remove(ctx context.Context, keys []block.Key) (tier.Removed, error) {
	r := removal{s: s, ctx: ctx, found: make(map[block.Key]bool), stay: make(map[block.Key]bool)}
	if err := r.run(keys); err != nil {
		return tier.Removed{}, fmt.Errorf("remove %d blocks: %w", len(keys), err)
	}
	return r.result(keys), nil
}

// removal is the state of one call of Store.Remove.
type removal struct {
	s     *Store
	ctx   context.Context
	found map[block.Key]bool // blocks removed from at least one tier
	stay  map[block.Key]bool // blocks that may still be in a tier
	busy  int                // blocks in use in the cache
	left  []error
}

func (r *removal) run(keys []block.Key) error {
	if err := block.CheckKeys(keys); err != nil {
		return err
	}
	if len(keys) == 0 {
		return nil
	}
	for _, t := range r.s.cfg.Next {
		if ro, ok := t.(tier.ReadOnlyTier); ok && ro.ReadOnly() {
			return fmt.Errorf("tier %s is open for reading only: %w", t.Name(), errdefs.ErrReadOnly)
		}
	}
	// The first removal from the cache finds blocks in use before a tier below loses them. A load
	// may read a block from a tier below until it is removed there, and then needs the second.
	if err := r.fromCache(keys); err != nil {
		return err
	}
	once := make(map[block.Key]bool)
	keys = slices.DeleteFunc(slices.Clone(keys), func(key block.Key) bool {
		omit := r.stay[key] || once[key]
		once[key] = true
		return omit
	})
	for _, t := range slices.Backward(r.s.cfg.Next) {
		if err := r.fromTier(t, keys); err != nil {
			return fmt.Errorf("tier %s: %w", t.Name(), err)
		}
	}
	return r.fromCache(keys)
}

// fromCache removes blocks from the cache.
func (r *removal) fromCache(keys []block.Key) error {
	for _, key := range keys {
		switch err := r.s.cfg.Cache.Delete(r.ctx, key); {
		case err == nil:
			r.found[key] = true
		case r.ctx.Err() != nil:
			return context.Cause(r.ctx)
		case errors.Is(err, errdefs.ErrBusy):
			if !r.stay[key] {
				r.stay[key], r.busy = true, r.busy+1
			}
		case !pipeline.IsNotFound(err):
			return err
		}
	}
	return nil
}

// fromTier removes blocks from a tier below the cache.
func (r *removal) fromTier(t tier.Tier, keys []block.Key) error {
	remove := func() (tier.Removed, error) { return removeEach(r.ctx, t, keys) }
	if m, ok := t.(tier.Remover); ok {
		remove = func() (tier.Removed, error) { return m.Remove(r.ctx, keys) }
	}
	removed, err := remove()
	for _, key := range removed.Keys {
		r.found[key] = true
	}
	if err != nil || removed.Left == nil {
		return err
	}
	r.left = append(r.left, fmt.Errorf("tier %s: %w", t.Name(), removed.Left))
	states := make([]tier.State, len(keys))
	err = t.Lookup(r.ctx, keys, states)
	for i, key := range keys {
		if err != nil || states[i] != tier.Absent {
			r.stay[key] = true
		}
	}
	return nil
}

// removeEach removes blocks from a tier that is no tier.Remover.
func removeEach(ctx context.Context, t tier.Tier, keys []block.Key) (r tier.Removed, err error) {
	failed := 0
	for _, key := range keys {
		err := t.Delete(ctx, key)
		switch {
		case err == nil:
			r.Keys = append(r.Keys, key)
		case ctx.Err() != nil:
			return r, context.Cause(ctx)
		case !pipeline.IsNotFound(err):
			if failed++; r.Left == nil || errors.Is(err, errdefs.ErrBusy) {
				r.Left = err
			}
		}
	}
	if failed > 1 {
		r.Left = fmt.Errorf("%d blocks stay, of one: %w", failed, r.Left)
	}
	return r, nil
}

func (r *removal) result(keys []block.Key) (out tier.Removed) {
	for _, key := range keys {
		if r.found[key] && !r.stay[key] {
			r.found[key] = false // keys may repeat it
			out.Keys = append(out.Keys, key)
			out.Bytes += r.s.pipeline.Map.Formats.ImageBytes(key)
		}
	}
	if r.busy > 0 {
		r.left = append(r.left, fmt.Errorf("%d blocks are in use: %w", r.busy, errdefs.ErrBusy))
	}
	out.Left = errors.Join(r.left...)
	return out
}
