package store

import (
	"context"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier"
)

// Why states for each key which tiers have its block, or why they do not: tier.Verdict describes the
// blocks of a prompt in a sentence. It does not count as a use or a miss. Block servers are asked
// as by Lookup, so that keys of the middle of a prompt need SetAnchors. The store keeps its own
// decisions about the last 16,384 blocks: those that Worth refused, and those that a tier did not
// store. A tier that fails is explained by its error.
//
// It reads directories and asks servers, so that it is for diagnosis, not for each request. Errors
// are those of Lookup; ctx bounds the waits.
func (s *Store) Why(ctx context.Context, keys []block.Key) ([]tier.Why, error) {
	out, err := s.pipeline.Index.Explain(ctx, keys)
	if err != nil {
		return nil, err
	}
	for i := range out {
		w := &out[i]
		w.Other = s.cfg.Formats.Group(w.Key) < 0
		w.Computed, _ = s.refused.Get(w.Key)
		if r, ok := s.pipeline.Refused.Get(w.Key); ok {
			t := &w.Tiers[r.Tier]
			if t.State != tier.Ready && (t.Removed == nil || t.Removed.Time.Before(r.Time)) {
				t.Refused = r.Err.Error()
			}
		}
	}
	return out, nil
}
