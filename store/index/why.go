package index

import (
	"context"
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier"
)

// Explain asks every tier why it has each key's block or not. A tier that fails is explained by its
// error. Explain returns an error only if ctx ends, or if a key is zero (ErrInvalid).
func (x *Index) Explain(ctx context.Context, keys []block.Key) ([]tier.Why, error) {
	err := x.usable()
	if err == nil {
		err = block.CheckKeys(keys)
	}
	if err != nil {
		return nil, fmt.Errorf("explain %d blocks: %w", len(keys), err)
	}
	x.anchors.Follow(block.Key{}, keys)
	out := make([]tier.Why, len(keys))
	for i := range out {
		out[i].Key = keys[i]
	}
	for _, t := range x.c.Tiers {
		explained, err := tier.Explain(ctx, t, keys)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("explain %d blocks: %w", len(keys), context.Cause(ctx))
		}
		for i := range out {
			e := tier.Explanation{}
			if err != nil {
				e.Error = err.Error()
			} else {
				e = explained[i]
			}
			out[i].Tiers = append(out[i].Tiers, tier.InTier{Tier: t.Name(), Explanation: e})
		}
	}
	return out, nil
}
