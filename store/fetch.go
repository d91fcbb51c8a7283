package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// fetching says how a block is read.
type fetching struct {
	wait   bool      // for a slot; else ErrBusy where none is free
	pinned bool      // a lease keeps the block where it is
	raw    *unproven // where given, and the tier can, the shards are not verified, and the block is not published: the slot is raw
}

// fetch reads the block of key, which is one, from the first tier below that has it into a slot, and publishes it. It returns the slot
// pinned, and the pipeline's tier. ErrExists: the block is in the cache, or another is bringing it. ErrNotFound: no tier has it.
func (s *Store) fetch(ctx context.Context, key []block.Key, how fetching) (tier.Slot, int8, error) {
	if _, err := s.formats.Of(key[0]); err != nil {
		return nil, 0, err
	}
	var fill tier.Fill
	var errs []error
	// What a lease pins, and the cache does not have, can only be in the one tier.
	pinned := how.pinned && len(s.next) == 1
	for ti, t := range s.next {
		// Retained first: a block that is nowhere must not cost another its slot, and none may go between the two steps.
		n, err := 1, error(nil)
		if !pinned {
			n, err = t.Retain(ctx, key)
		}
		if err == nil && n == 0 {
			continue
		}
		if err == nil && fill == nil {
			fill, err = s.reserveFor(ctx, key[0], how.wait)
			if err != nil {
				s.letGo(t, key, pinned)
				return nil, 0, err
			}
		}
		if err == nil {
			var slot tier.Slot
			slot, err = s.read(ctx, t, key[0], fill, how.raw)
			s.letGo(t, key, pinned)
			if err == nil {
				return slot, int8(ti + 1), nil
			}
		}
		if ctx.Err() != nil {
			errs = append(errs, fmt.Errorf("tier %s: %w", t.Name(), err))
			break
		}
		if errors.Is(err, errdefs.ErrNotFound) {
			continue
		}
		errs = append(errs, fmt.Errorf("tier %s: %w", t.Name(), err))
		if bad(err) {
			s.count.corrupt.Add(1)
			s.cfg.Hooks.corrupt(t.Name(), key[0], err)
		} else {
			s.index.FellBack(t, key[0], err)
		}
	}
	err := errors.Join(errs...)
	if err == nil {
		err = fmt.Errorf("no tier has it: %w", errdefs.ErrNotFound)
	}
	if fill != nil {
		fill.Abort(err) // Get has returned: nothing writes the slot any more
	}
	return nil, 0, err
}

// letGo undoes fetch's own Retain.
func (s *Store) letGo(t tier.Tier, key []block.Key, pinned bool) {
	if !pinned {
		t.Release(key)
	}
}

// read reads a block from a tier into the slot of fill, and publishes it; or, see fetch, makes it raw.
func (s *Store) read(ctx context.Context, t tier.Tier, key block.Key, fill tier.Fill, raw *unproven) (tier.Slot, error) {
	group := s.formats.Group(key)
	image := s.imageOf(fill.Extent(), uint8(group))
	r, able := t.(tier.Reader)
	if raw == nil || !able {
		if err := t.Get(ctx, key, image); err != nil {
			return nil, err
		}
		return s.publish(fill)
	}
	if err := r.Read(ctx, key, image); err != nil {
		return nil, err
	}
	raw.fill, raw.sums = fill, s.formats[group].ShardSums(raw.sums[:0], image.Bytes(), key)
	return raw, nil
}

func (s *Store) reserveFor(ctx context.Context, key block.Key, wait bool) (tier.Fill, error) {
	if wait {
		return s.reserve(ctx, key)
	}
	f, err := s.cache.Reserve(s.now, key)
	if err != nil && isBusy(err) && !errors.Is(err, errdefs.ErrBusy) {
		err = fmt.Errorf("%w: %w", errdefs.ErrBusy, err)
	}
	return f, err
}

// publish makes a fill whose slot holds a complete image Ready.
func (s *Store) publish(fill tier.Fill) (tier.Slot, error) {
	slot, err := fill.Publish()
	if err != nil {
		return nil, fmt.Errorf("publish: %w", err)
	}
	return slot, nil
}

// bad says whether err means that stored bytes are not the block's.
func bad(err error) bool {
	return errors.Is(err, errdefs.ErrCorrupt) || errors.Is(err, errdefs.ErrMismatch)
}

func notFound(err error) bool { return errors.Is(err, errdefs.ErrNotFound) }

func isExists(err error) bool { return errors.Is(err, errdefs.ErrExists) }
