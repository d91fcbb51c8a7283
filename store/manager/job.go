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

// Job is a load or store of some blocks by all workers. Its fields must not be changed. The caller
// of Load or Store calls End.
type Job struct {
	// Blocks are loaded or stored by the workers, in the order of the call.
	Blocks []Block
	// Anchors are the anchors of Blocks, the same for the workers of all ranks: keys of rank 0. Each
	// worker sets them for its keys before it accesses the blocks (kvlane.Engine.SetAnchors). It is
	// nil unless a tier places blocks by anchors (tier.Placed).
	Anchors []block.Key
	// Evicted are blocks that the workers drop from their pools before they start.
	Evicted []Block
	// Direct makes the workers load blocks that are not in their pools directly from files
	// (store.PromoteNone). The pools have no slots for these blocks. If a worker reads one of them
	// through its pool nevertheless, FellBack must report it.
	Direct bool

	m      *Manager
	blocks []jobBlock // by Blocks
	load   bool
	ended  bool // guarded by the Manager's mu
}

// jobBlock is a block of a job. It is pinned by slot, filled through fill, or has neither.
type jobBlock struct {
	key  block.Key
	name *Block // the element of Manager.names
	slot tier.Slot
	fill tier.Fill
	from State // where a load finds it
}

// Load pins blocks, for workers to load from their pools, or from files into the pools. With
// Config.Direct, a block in files enters the pools only if one of the blocks was requested or
// evicted recently, or is in a block server: see Job.Direct. Load returns ErrNotFound if a block is
// absent, and ErrBusy if another job is storing or reading a block, if a block from files is given
// twice, or if there is no space for blocks from files. After an error nothing is pinned.
func (m *Manager) Load(ctx context.Context, blocks []Block) (*Job, error) {
	fail := func(err error) (*Job, error) { return nil, fmt.Errorf("load %d blocks: %w", len(blocks), err) }
	states, unseen := m.Lookup(ctx, blocks)
	if states == nil {
		return fail(unseen)
	}
	keys, err := m.keys(0, blocks)
	if err != nil {
		return fail(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	j := &Job{m: m, load: true, Blocks: slices.Clone(blocks), Direct: m.direct, blocks: make([]jobBlock, len(blocks))}
	for i := range keys {
		if err := m.pin(&j.blocks[i], keys[i], blocks[i], states[i].There()); err != nil {
			j.undo(err)
			return fail(errors.Join(fmt.Errorf("block %d: %w", i, err), unseen))
		}
		h := &j.blocks[i]
		if h.from = InPool; h.slot == nil {
			h.from = states[i]
		}
		if m.direct && h.slot == nil && (m.pool.Admit(keys[i]) || h.from == InRemote) {
			j.Direct = false
		}
	}
	inFiles := int64(0)
	for i := range j.blocks {
		h := &j.blocks[i]
		if h.slot != nil {
			continue
		}
		inFiles++
		if !j.Direct {
			from := h.from
			if *h, err = m.reserve(keys[i], blocks[i]); err != nil {
				if errors.Is(err, errdefs.ErrExists) { // this job already reads the block
					err = fmt.Errorf("the job brings it already: %w", errdefs.ErrBusy)
				}
				j.undo(err)
				return fail(errors.Join(fmt.Errorf("block %d: %w", i, err), unseen))
			}
			h.from = from
		}
	}
	m.stats.FromFiles += inFiles
	m.stats.FromPool += int64(len(blocks)) - inFiles
	if j.Direct = j.Direct && inFiles > 0; j.Direct {
		m.stats.Direct += inFiles
	}
	m.begin(j)
	return j, nil
}

// pin pins a block in the pool. If only files have the block, h stays without a slot. inFiles
// reports whether files have it. The caller holds mu.
func (m *Manager) pin(h *jobBlock, key block.Key, name Block, inFiles bool) error {
	*h = jobBlock{key: key, name: &name}
	slot, err := m.pool.Open(m.noWait, key)
	switch {
	case err == nil:
		h.name, h.slot = m.names[key], slot
	case !errors.Is(err, errdefs.ErrNotFound):
		return fmt.Errorf("another job loads it: %w", errdefs.ErrBusy)
	case !inFiles:
		return errdefs.ErrNotFound
	}
	return nil
}

// reserve makes space for a block. It returns ErrExists if the pool has the block or a job is
// storing or reading it, and ErrBusy if all slots are in use. The caller holds mu.
func (m *Manager) reserve(key block.Key, name Block) (jobBlock, error) {
	f, err := m.pool.Reserve(m.noWait, key)
	if err != nil {
		return jobBlock{}, err
	}
	m.names[key] = &name
	return jobBlock{key: key, name: &name, fill: f}, nil
}

// Store makes space for the blocks that are neither in the workers' pools nor being stored there.
// They become Job.Blocks, which may be empty. blocks are in the order of a prompt, whose last block
// is evicted first. before is the block before the first; if there are several, the last one
// counts. It may be omitted after a Lookup of the whole prompt. Store returns ErrBusy if there is
// no space for all blocks, and counts that in Stats.Refused. It may have evicted blocks
// nevertheless.
func (m *Manager) Store(blocks []Block, before ...Block) (*Job, error) {
	keys, err := m.keys(0, blocks)
	if err != nil {
		return nil, fmt.Errorf("store %d blocks: %w", len(blocks), err)
	}
	earlier, err := m.keys(0, before)
	if err != nil {
		return nil, fmt.Errorf("store %d blocks: the block before them: %w", len(blocks), err)
	}
	var last block.Key
	if n := len(earlier); n > 0 {
		last = earlier[n-1]
	}
	m.note(last, keys)
	m.runs.Follow(last, keys)
	m.mu.Lock()
	defer m.mu.Unlock()
	j := &Job{m: m}
	for i := range keys {
		h, err := m.reserve(keys[i], blocks[i])
		switch {
		case err == nil:
			j.Blocks, j.blocks = append(j.Blocks, blocks[i]), append(j.blocks, h)
		case !errors.Is(err, errdefs.ErrExists):
			j.undo(err)
			m.stats.Refused += int64(len(blocks))
			return nil, fmt.Errorf("store %d blocks: %w", len(blocks), err)
		}
	}
	m.stats.Stored += int64(len(j.blocks))
	m.begin(j)
	return j, nil
}

// begin passes the recorded evicted blocks to the job. The caller holds mu.
func (m *Manager) begin(j *Job) {
	keys := make([]block.Key, len(j.blocks))
	for i := range j.blocks {
		keys[i] = j.blocks[i].key
	}
	j.Anchors = m.anchors(keys)
	j.Evicted, m.evicted = m.evicted, nil
	m.live++
}

// undo releases the blocks of a job that does not start. Evicted blocks stay evicted. The caller
// holds mu.
func (j *Job) undo(cause error) {
	for i := range j.blocks {
		switch h := &j.blocks[i]; {
		case h.slot != nil:
			h.slot.Release()
		case h.fill != nil:
			h.fill.Abort(cause)
			delete(j.m.names, h.key)
		}
	}
}

// End reports that every worker has ended the job and no longer accesses its blocks. failed are
// indices of Blocks that a worker could not store, or found missing or corrupt; the Manager forgets
// these blocks. The others are present. Only the first call has an effect. If an index is out of
// range, End returns ErrInvalid, and the job does not end.
func (j *Job) End(failed ...int) error {
	bad := make([]bool, len(j.blocks))
	for _, i := range failed {
		if i < 0 || i >= len(bad) {
			return fmt.Errorf("end job of %d blocks: block %d is not one of them: %w", len(bad), i, errdefs.ErrInvalid)
		}
		bad[i] = true
	}
	j.m.mu.Lock()
	defer j.m.mu.Unlock()
	if j.ended {
		return nil
	}
	j.ended = true
	j.m.live--
	for i := range j.blocks {
		j.m.unpin(&j.blocks[i], bad[i])
	}
	return nil
}

// FellBack reports blocks of a direct job, by their indices, that a worker has read through its
// pool. The workers drop them from their pools before the next job, unless another job has brought
// them to all pools. Call it before End. If an index is out of range, FellBack returns ErrInvalid
// and reports no block.
func (j *Job) FellBack(blocks ...int) error {
	for _, i := range blocks {
		if i < 0 || i >= len(j.blocks) {
			return fmt.Errorf("report a job of %d blocks: block %d is not one of them: %w", len(j.blocks), i, errdefs.ErrInvalid)
		}
	}
	j.m.mu.Lock()
	defer j.m.mu.Unlock()
	for _, i := range blocks {
		if h := &j.blocks[i]; h.slot == nil && h.fill == nil && j.m.names[h.key] == nil {
			j.m.evicted = append(j.m.evicted, j.Blocks[i])
			j.m.stats.FellBack++
		}
	}
	return nil
}

// unpin releases a block. The block is present afterwards, unless bad is set. The caller holds mu.
func (m *Manager) unpin(h *jobBlock, bad bool) {
	switch {
	case h.fill != nil && bad:
		h.fill.Abort(errForgotten)
		m.gone(h.key)
	case h.fill != nil:
		slot, err := h.fill.Publish()
		if err != nil { // the Manager is closed
			delete(m.names, h.key)
			return
		}
		slot.Release()
	case h.slot == nil: // loaded directly
		if bad {
			m.stats.Forgotten++
		}
	default:
		// A different name means that the block was forgotten meanwhile, and perhaps stored again.
		if bad && m.names[h.key] == h.name {
			h.slot.Corrupt(errForgotten)
			m.gone(h.key)
		}
		h.slot.Release()
	}
}
