package manager

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// Lookup returns the state of each block. blocks are in the order of a prompt; blocks of several
// page groups are in the order of their tokens. blocks[0] is the first of its prompt, unless it has
// an anchor (SetAnchors). Lookup pins nothing: the state may change until Load. If a tier below the
// pools fails, its blocks count as absent, and its error is returned with the states. The error is
// ErrBusy if the tier has not answered within Config.FilesMax. Until that lookup ends, further
// calls do not ask the tier.
func (m *Manager) Lookup(ctx context.Context, blocks []Block) ([]State, error) {
	keys, err := m.keys(0, blocks)
	if err != nil {
		return nil, fmt.Errorf("look up %d blocks: %w", len(blocks), err)
	}
	pooled := make([]tier.State, len(blocks))
	if err := m.pool.Lookup(ctx, keys, pooled); err != nil {
		return nil, fmt.Errorf("look up %d blocks: %w", len(blocks), err)
	}
	states := make([]State, len(blocks))
	var below []Block
	var at []int
	for i, s := range pooled {
		switch s {
		case tier.Ready:
			states[i] = InPool
		case tier.Filling:
			states[i] = UnderWay
		default:
			below, at = append(below, blocks[i]), append(at, i)
		}
	}
	if len(at) == 0 {
		return states, nil
	}
	m.note(block.Key{}, keys)
	m.runs.Follow(block.Key{}, keys)
	found, err := m.below(ctx, below)
	for k, i := range at {
		states[i] = found[k]
	}
	return states, err
}

// SetAnchors records the anchors of blocks, for callers whose calls do not start with the first
// block of a prompt. The anchor of a block is the first block of its run of tier.RunBlocks blocks,
// counted from the start of the prompt. It returns ErrInvalid if the lists have different lengths.
func (m *Manager) SetAnchors(blocks, anchors []Block) error {
	if len(blocks) != len(anchors) {
		return fmt.Errorf("set %d anchors of %d blocks: %w", len(anchors), len(blocks), errdefs.ErrInvalid)
	}
	keys, err := m.keys(0, blocks)
	of, aerr := m.keys(0, anchors)
	if err := errors.Join(err, aerr); err != nil {
		return fmt.Errorf("set anchors of %d blocks: %w", len(blocks), err)
	}
	m.runs.Set(keys, of)
	return nil
}

// anchors returns the anchor of each block, or its key if its anchor is not recorded. keys and
// anchors are of rank 0. All ranks use them, so that one place has the blocks of all ranks. It
// returns nil if no tier is tier.Placed.
func (m *Manager) anchors(keys []block.Key) []block.Key {
	if m.runs == nil {
		return nil
	}
	out := slices.Clone(keys)
	for i, key := range keys {
		if anchor, ok := m.runs.Of(key); ok {
			out[i] = anchor
		} else {
			m.unanchored.Add(1)
		}
	}
	return out
}

// below returns the state of each block in the tiers below the pools. A block is present if every
// rank has it in one of these tiers. The state is that of the lowest tier that a rank needs.
func (m *Manager) below(ctx context.Context, blocks []Block) ([]State, error) {
	states := make([]State, len(blocks))
	has := make([][]bool, len(m.ranks)) // by rank and block
	for rank := range has {
		has[rank] = make([]bool, len(blocks))
	}
	at := make([]int, len(blocks)) // the absent blocks
	for i := range at {
		at[i] = i
	}
	var errs []error
	for i, t := range m.tiers {
		if len(at) == 0 {
			break
		}
		ask := make([]Block, len(at))
		for k, b := range at {
			ask[k] = blocks[b]
		}
		found, err := t.lookUp(ctx, len(ask), func(ctx context.Context) ([][]bool, error) { return m.ask(ctx, i, ask) })
		if err != nil {
			errs = append(errs, err)
			continue
		}
		k := 0 // index in ask
		at = slices.DeleteFunc(at, func(b int) bool {
			all := true
			for rank := range found {
				has[rank][b] = has[rank][b] || found[rank][k]
				all = all && has[rank][b]
			}
			if all {
				states[b] = t.state
			}
			k++
			return all
		})
	}
	return states, errors.Join(errs...)
}

// ask reports for each rank and block whether tier i below the pool has the block.
func (m *Manager) ask(ctx context.Context, i int, blocks []Block) ([][]bool, error) {
	first, err := m.keys(0, blocks)
	if err != nil {
		return nil, err
	}
	anchors := m.anchors(first)
	found := make([][]bool, len(m.ranks))
	states := make([]tier.State, len(blocks))
	for rank, r := range m.ranks {
		keys, err := m.keys(rank, blocks)
		if err == nil {
			if anchors != nil {
				m.placed[rank].Set(keys, anchors)
			}
			err = r.Below[i].Lookup(ctx, keys, states)
		}
		if err != nil {
			return nil, fmt.Errorf("look up %d blocks in tier %s of rank %d: %w", len(blocks), m.tiers[i].name, rank, err)
		}
		for _, s := range states {
			found[rank] = append(found[rank], s == tier.Ready)
		}
	}
	return found, nil
}
