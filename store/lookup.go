package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// Hit is the answer of Lookup for one key.
type Hit struct {
	State tier.State // Ready is a hit, everything else is not
	Tier  string     // the first tier that has the block Ready; empty without a hit
}

// Lookup says for each key where it stands: Ready in the first tier that has it, else what the topmost tier that knows
// of it says. It pins nothing: a hit may be gone when it is loaded, which the load says; LeasePrefix is for those who mind. A
// tier that cannot be asked has no hits; the error is returned only if every tier failed, or if ctx ended.
func (s *Store) Lookup(ctx context.Context, keys []block.Key) ([]Hit, error) {
	if err := s.usable(); err != nil {
		return nil, fmt.Errorf("look up %d blocks: %w", len(keys), err)
	}
	hits := make([]Hit, len(keys))
	ask := append(make([]block.Key, 0, len(keys)), keys...)
	at := make([]int, len(keys)) // ask[j] is keys[at[j]]
	for i := range at {
		at[i] = i
	}
	states := make([]tier.State, len(keys))
	var errs []error
	for ti := 0; ti <= len(s.next) && len(ask) > 0; ti++ {
		t := s.tier(ti)
		if err := t.Lookup(ctx, ask, states[:len(ask)]); err != nil {
			if ctx.Err() != nil {
				return nil, fmt.Errorf("look up %d blocks: %w", len(keys), context.Cause(ctx))
			}
			s.fellBack(t, ask[0], err)
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
	if len(errs) > len(s.next) {
		return nil, fmt.Errorf("look up %d blocks: %w", len(keys), errors.Join(errs...))
	}
	return hits, nil
}

// tier returns the i-th tier of the pipeline; 0 is the cache.
func (s *Store) tier(i int) tier.Tier {
	if i == 0 {
		return s.cache
	}
	return s.next[i-1]
}

func (s *Store) usable() error {
	select {
	case <-s.closing:
		return errdefs.ErrClosed
	default:
		return nil
	}
}
