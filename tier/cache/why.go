package cache

import (
	"context"
	"os"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier"
)

// maxRemoved bounds the number of evicted blocks whose time is kept for explanations.
const maxRemoved = 1 << 14

// Explain implements tier.Explainer. It knows the last 16,384 evictions.
func (t *Tier) Explain(ctx context.Context, keys []block.Key, out []tier.Explanation) error {
	if err := t.beginQuery(ctx, keys, len(out)); err != nil {
		return err
	}
	defer t.mu.Unlock()
	for i := range keys {
		slot, state := t.at(&keys[i])
		out[i] = tier.Explanation{State: state}
		switch state {
		case tier.Ready:
			out[i].Stored = t.opened.Add(t.entries[slot].since)
		case tier.Failed:
			if cause, _ := t.failed.get(keys[i]); cause != nil {
				out[i].Reason = cause.Error()
			}
		case tier.Filling, tier.Absent:
			if at, ok := t.removed.Get(keys[i]); ok {
				out[i].Removed = &tier.Removal{Time: t.opened.Add(at), Cause: tier.CauseBound, PID: os.Getpid()}
			}
		}
	}
	return nil
}
