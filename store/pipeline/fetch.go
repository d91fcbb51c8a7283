package pipeline

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// FetchOptions are options of Pipeline.Fetch.
type FetchOptions struct {
	// Wait makes Fetch wait for a free slot. Otherwise Fetch returns ErrBusy if there is none.
	Wait bool
	// Leased is set if a lease pins the block in its tier.
	Leased bool
	// Unverified, if not nil, receives the block if its tier can read without verifying
	// (tier.Reader). Fetch then returns it as the slot, and does not publish the block.
	Unverified *Unverified
	// Direct, if not nil, receives the block if its tier can read it into device memory. Fetch then
	// returns it as the slot, and does not publish the block.
	Direct *DirectBlock
}

// Fetch reads a block into a slot from the first tier below the cache that has it, and publishes
// the block. key has one element. Fetch returns the pinned slot and the index of the tier in the
// pipeline, where 0 is the cache. It returns ErrExists if the block is in the cache or another task
// is filling it, and ErrNotFound if no tier has it.
func (p *Pipeline) Fetch(ctx context.Context, key []block.Key, o FetchOptions) (tier.Slot, int8, error) {
	if _, err := p.Map.Formats.Of(key[0]); err != nil {
		return nil, 0, err
	}
	var fill tier.Fill
	var errs []error
	missed := errdefs.ErrNotFound // or the error of the last tier that did not have the block
	// A leased block that is not in the cache must be in the only other tier.
	leased := o.Leased && len(p.Lower) == 1
	for i, t := range p.Lower {
		// Retain before reserving a slot. Otherwise an absent block could evict another one, and a
		// present block could be evicted between the two steps.
		n, err := 1, error(nil)
		if !leased {
			n, err = t.Retain(ctx, key)
		}
		if err == nil && n == 0 {
			continue
		}
		if err == nil && fill == nil { // after a failure of a tier the CPU must verify the block
			var done bool
			if done, err = p.fetchDirect(ctx, t, key[0], o.Direct); done {
				release(t, key, leased)
				return o.Direct, int8(i + 1), nil
			} else if err != nil {
				release(t, key, leased)
			}
		}
		if err == nil && fill == nil {
			fill, err = p.Reserve(ctx, key[0], o.Wait)
			if err != nil {
				release(t, key, leased)
				return nil, 0, err
			}
		}
		if err == nil {
			var raw bool
			raw, err = p.read(ctx, t, key[0], fill, o.Unverified)
			release(t, key, leased)
			if raw {
				return o.Unverified, int8(i + 1), nil
			}
			if err == nil {
				// On error the fill has ended, and its slot must not be used for another tier.
				slot, err := Publish(fill)
				return slot, int8(i + 1), err
			}
		}
		if ctx.Err() != nil {
			errs = append(errs, fmt.Errorf("tier %s: %w", t.Name(), err))
			break
		}
		if IsNotFound(err) {
			missed = fmt.Errorf("tier %s: %w", t.Name(), err)
			continue
		}
		errs = append(errs, fmt.Errorf("tier %s: %w", t.Name(), err))
		if IsCorrupt(err) {
			p.CountCorrupt(t.Name(), key[0], err)
		} else {
			p.Index.FellBack(t, key[0], err)
		}
	}
	err := errors.Join(errs...)
	if err == nil {
		err = fmt.Errorf("no tier has the block: %w", missed)
	}
	if fill != nil {
		fill.Abort(err) // all reads have returned: the slot is no longer written
	}
	return nil, 0, err
}

// release undoes the Retain of Fetch.
func release(t tier.Tier, key []block.Key, leased bool) {
	if !leased {
		t.Release(key)
	}
}

// read reads a block from a tier into the slot of fill. It returns true if the block was not
// verified; raw is then set. See FetchOptions.Unverified.
func (p *Pipeline) read(ctx context.Context, t tier.Tier, key block.Key, fill tier.Fill, raw *Unverified) (_ bool, err error) {
	ctx, end := p.StartSpan(ctx, Span{"get", t.Name(), 1})
	defer func() { end(err) }()
	group := p.Map.Formats.Group(key)
	image := p.Map.Image(fill.Extent(), uint8(group))
	r, ok := t.(tier.Reader)
	if raw == nil || !ok {
		return false, t.Get(ctx, key, image)
	}
	if err := r.Read(ctx, key, image); err != nil {
		return false, err
	}
	raw.fill, raw.sums = fill, p.Map.Formats[group].ShardSums(raw.sums[:0], image.Bytes(), key)
	return true, nil
}
