package store

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// PrefetchTask is a running prefetch. Safe for concurrent use. It need not be waited for.
type PrefetchTask struct {
	task
	keys []block.Key
	left atomic.Int64 // jobs out, and one for the task itself

	probe bool // its time is what it is for: see Store.Worth
	begun time.Time
	bytes atomic.Int64 // brought
}

// Prefetch moves blocks up into the cache, where they stay as long as the cache finds them worth
// it: nothing is pinned afterwards. Blocks that are in the cache, or on their way there, are left
// alone. It gives way to loads, and never waits for a slot: ErrBusy for blocks that find none,
// ErrNotFound for blocks that no tier has. A zero key is ErrInvalid. Where the pipeline has no
// cache there is nowhere to move them: it does nothing. Load's rules hold for ctx.
func (s *Store) Prefetch(ctx context.Context, keys []block.Key) (*PrefetchTask, error) {
	return s.prefetch(ctx, keys, false)
}

func (s *Store) prefetch(ctx context.Context, keys []block.Key, probe bool) (*PrefetchTask, error) {
	if err := block.CheckKeys(keys); err != nil {
		return nil, fmt.Errorf("prefetch %d blocks: %w", len(keys), err)
	}
	if err := s.begin(ctx, s.turns); err != nil {
		return nil, fmt.Errorf("prefetch %d blocks: %w", len(keys), err)
	}
	t := &PrefetchTask{keys: append([]block.Key(nil), keys...), probe: probe, begun: s.clock.Now()}
	t.init(s.loadCtx, s, len(keys))
	t.left.Store(1)
	s.index.Use(block.Key{}, t.keys)
	s.count.prefetches.Add(1)
	if s.passing {
		t.one()
		return t, nil
	}
	states := make([]tier.State, len(keys))
	if err := s.cache.Lookup(t.ctx, t.keys, states); err != nil {
		clear(states)
		if t.ctx.Err() == nil && len(keys) > 0 {
			s.index.FellBack(s.cache, keys[0], err)
		}
	}
	for i := range t.keys {
		switch {
		case states[i] == tier.Ready || states[i] == tier.Filling:
		case len(s.next) == 0:
			t.set(int32(i), BlockError{Op: "prefetch", Key: t.keys[i], Err: errdefs.ErrNotFound})
		default:
			t.left.Add(1)
			s.readers.pushLater(t, int32(i))
		}
	}
	t.one()
	return t, nil
}

// Wait waits until the task has resolved and returns the errors of its blocks, joined; or until ctx ends, and returns
// the context's cause.
func (t *PrefetchTask) Wait(ctx context.Context) error { return t.wait(ctx, t.done) }

func (t *PrefetchTask) work(_ jobKind, i int32) {
	err := t.ctx.Err()
	var slot tier.Slot
	if err == nil {
		slot, _, err = t.s.fetch(t.ctx, t.keys[i:i+1], fetching{})
	}
	switch {
	case err == nil:
		slot.Release()
		t.s.count.prefetched.Add(1)
		t.bytes.Add(t.s.formats.ImageBytes(t.keys[i]))
	case isExists(err): // another has brought it, or is about to
	default:
		t.set(i, BlockError{Op: "prefetch", Key: t.keys[i], Err: err})
	}
	t.one()
}

// one counts down, and resolves the task with the last.
func (t *PrefetchTask) one() {
	if t.left.Add(-1) > 0 {
		return
	}
	now := t.s.clock.Now()
	took := now.Sub(t.begun)
	if n := t.bytes.Load(); n > 0 {
		t.s.admission.Loaded(0, n, took)
	}
	if t.probe {
		t.s.admission.Probed(now, took)
	}
	t.cancel(nil)
	close(t.done)
	t.s.end(t.s.turns)
}
