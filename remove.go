package kvlane

import (
	"context"

	"github.com/kvlane/kvlane/tier"
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
