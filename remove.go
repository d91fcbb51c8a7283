package kvlane

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/owner"
)

// Remove removes blocks from all tiers of the pipeline. Blocks in use stay, and are an error in
// tier.Removed.Left: see store.Store.Remove. Other engines that share the tiers below may still
// have the blocks in their caches.
func (e *Engine) Remove(ctx context.Context, keys []Key) (tier.Removed, error) {
	if err := e.usable(); err != nil {
		return tier.Removed{}, err
	}
	return e.store.Remove(ctx, keys)
}

// Pin pins blocks in every tier with directories that has them: see tier.Pinner. It returns
// ErrNotFound if no such tier has one of the blocks. After an error some of the blocks may be
// pinned.
func (e *Engine) Pin(ctx context.Context, keys []Key) error {
	pinned := make(map[Key]bool)
	err := e.eachPinner(func(t tier.Tier, p tier.Pinner) error {
		states := make([]tier.State, len(keys))
		if err := t.Lookup(ctx, keys, states); err != nil {
			return err
		}
		var has []Key
		for i, key := range keys {
			if states[i] == tier.Ready {
				has = append(has, key)
				pinned[key] = true
			}
		}
		return p.Pin(ctx, has)
	})
	for _, key := range keys {
		if err == nil && !pinned[key] {
			err = fmt.Errorf("block %s is in no tier with directories: %w", key, errdefs.ErrNotFound)
		}
	}
	if err != nil {
		return fmt.Errorf("pin %d blocks: %w", len(keys), err)
	}
	return nil
}

// Unpin removes the pins of blocks from all tiers. It ignores blocks that are not pinned.
func (e *Engine) Unpin(ctx context.Context, keys []Key) error {
	err := e.eachPinner(func(_ tier.Tier, p tier.Pinner) error { return p.Unpin(ctx, keys) })
	if err != nil {
		return fmt.Errorf("unpin %d blocks: %w", len(keys), err)
	}
	return nil
}

// eachPinner calls f for the tiers that can pin blocks. It returns ErrNotSupported if there is none.
func (e *Engine) eachPinner(f func(t tier.Tier, p tier.Pinner) error) error {
	if err := e.usable(); err != nil {
		return err
	}
	err := fmt.Errorf("no tier has directories: %w", errdefs.ErrNotSupported)
	var errs []error
	for _, t := range e.lower {
		if p, ok := t.(tier.Pinner); ok {
			err = nil
			if terr := f(t, p); terr != nil {
				errs = append(errs, fmt.Errorf("tier %s: %w", t.Name(), terr))
			}
		}
	}
	return errors.Join(append(errs, err)...)
}

// tierOwner is the owner of a tier's directories.
type tierOwner struct {
	*Engine
	tier.Pinner // of the tier
}

// Pin implements owner.Owner.
func (o tierOwner) Pin(ctx context.Context, keys []Key) error { return o.Pinner.Pin(ctx, keys) }

// Unpin implements owner.Owner.
func (o tierOwner) Unpin(ctx context.Context, keys []Key) error { return o.Pinner.Unpin(ctx, keys) }

// serveOwner lets commands reach the engine by sockets in its directories. Without them, commands
// for the directories are refused while the engine has them open.
func (e *Engine) serveOwner(context.Context) error {
	for _, t := range e.lower {
		o, ok := t.(interface {
			tier.Pinner
			Serve(o owner.Owner) ([]*owner.Server, error)
		})
		if !ok {
			continue
		}
		servers, err := o.Serve(tierOwner{e, o})
		if err != nil {
			e.note(fmt.Sprintf("tier %s: kvlane store rm, pin and unpin are refused while this process has it open: %v", t.Name(), err))
		}
		for _, s := range servers {
			e.closers.Add("commands for tier "+t.Name(), s.Close)
		}
	}
	return nil
}
