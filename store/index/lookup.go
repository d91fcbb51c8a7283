package index

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier"
)

// Hit is the result of Lookup for one key.
type Hit struct {
	State tier.State // only Ready is a hit
	Tier  string     // first tier in which the block is Ready, or empty
}

// Lookup returns the state of each key's block: Ready with the first tier that has it ready, else
// the state in the first tier that has the block in any state. It pins nothing: a block may be
// evicted before it is loaded. LeasePrefix pins blocks. A failing tier counts as a miss. Lookup
// returns an error only if every tier fails, if ctx ends, or if a key is zero (ErrInvalid).
func (x *Index) Lookup(ctx context.Context, keys []block.Key) ([]Hit, error) {
	if err := x.usable(); err != nil {
		return nil, fmt.Errorf("look up %d blocks: %w", len(keys), err)
	}
	if err := block.CheckKeys(keys); err != nil {
		return nil, fmt.Errorf("look up %d blocks: %w", len(keys), err)
	}
	x.anchors.Follow(block.Key{}, keys)
	hits := make([]Hit, len(keys))
	ask := append(make([]block.Key, 0, len(keys)), keys...)
	at := make([]int, len(keys)) // ask[j] is keys[at[j]]
	for i := range at {
		at[i] = i
	}
	states := make([]tier.State, len(keys))
	var errs []error
	for _, t := range x.c.Tiers {
		if len(ask) == 0 {
			break
		}
		if err := t.Lookup(ctx, ask, states[:len(ask)]); err != nil {
			if ctx.Err() != nil {
				return nil, fmt.Errorf("look up %d blocks: %w", len(keys), context.Cause(ctx))
			}
			x.FellBack(t, ask[0], err)
			errs = append(errs, fmt.Errorf("tier %s: %w", t.Name(), err))
			continue
		}
		n := 0
		for j, i := range at {
			switch st := states[j]; {
			case st == tier.Ready:
				hits[i] = Hit{State: tier.Ready, Tier: t.Name()}
				continue
			case hits[i].State == tier.Absent:
				hits[i].State = st
			}
			ask[n], at[n] = keys[i], i
			n++
		}
		ask, at = ask[:n], at[:n]
	}
	if len(errs) == len(x.c.Tiers) {
		return nil, fmt.Errorf("look up %d blocks: %w", len(keys), errors.Join(errs...))
	}
	return hits, nil
}
