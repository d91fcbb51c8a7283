package manager

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// Lookup returns the state of each block. blocks are in the order of a prompt; blocks of several
// page groups are in the order of their tokens. Lookup pins nothing: the state may change until
// Load. If the file tier fails, its blocks count as absent, and its error is returned with the
// states. The error is ErrBusy if the tier has not answered within Config.FilesMax. Until that
// lookup ends, further calls return ErrBusy at once.
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
	if len(at) > 0 {
		m.note(block.Key{}, keys)
	}
	there, err := m.inFiles(ctx, below)
	for k, i := range at {
		if there != nil && there[k] {
			states[i] = InFiles
		}
	}
	return states, err
}

// inFiles reports for each block whether the files of every rank have it. It waits for at most
// Config.FilesMax.
func (m *Manager) inFiles(ctx context.Context, blocks []Block) ([]bool, error) {
	if len(blocks) == 0 || m.files == nil {
		return nil, nil
	}
	there, err := m.files.lookUp(ctx, func(ctx context.Context) ([]bool, error) { return m.askFiles(ctx, blocks) })
	if errors.Is(err, errdefs.ErrBusy) {
		m.files.overdue.Add(int64(len(blocks)))
	}
	return there, err
}

// askFiles reports for each block whether the files of every rank have it.
func (m *Manager) askFiles(ctx context.Context, blocks []Block) ([]bool, error) {
	there := make([]bool, len(blocks))
	states := make([]tier.State, len(blocks))
	for rank := range m.ranks {
		keys, err := m.keys(rank, blocks)
		if err == nil {
			err = m.ranks[rank].Files.Lookup(ctx, keys, states)
		}
		if err != nil {
			return nil, fmt.Errorf("look up %d blocks in the files of rank %d: %w", len(blocks), rank, err)
		}
		for i, s := range states {
			there[i] = s == tier.Ready && (rank == 0 || there[i])
		}
	}
	return there, nil
}
