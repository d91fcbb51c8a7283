package manager

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// Job is something that all workers do for some blocks. Its fields are not to be changed. One owner, who ends it.
type Job struct {
	// Blocks are what the workers load or store, in the order in which they were asked for.
	Blocks []Block
	// Evicted are blocks that the workers drop from their pools before they begin.
	Evicted []Block

	m     *Manager
	held  []held // one of each of Blocks
	load  bool
	begun time.Time
	ended bool // guarded by the Manager's mu
}

// held is a job's hold on a block: a pin, or a place that the job fills.
type held struct {
	key  block.Key
	name *Block // as the Manager has it
	slot tier.Slot
	fill tier.Fill
}

// Load pins the blocks, each of which has to be there, for workers to load: from their pools, or else from files, into the pools on the
// way. ErrNotFound for one that is not there, ErrBusy for one that is on its way by another job, or if there is no room for what
// comes from files: then nothing is pinned.
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
	j := &Job{m: m, load: true}
	for i := range keys {
		h, err := m.pin(keys[i], blocks[i], states[i].There())
		if err != nil {
			j.undo(err)
			return fail(errors.Join(fmt.Errorf("block %d: %w", i, err), unseen))
		}
		j.Blocks, j.held = append(j.Blocks, blocks[i]), append(j.held, h)
	}
	for i := range j.held {
		if j.held[i].slot != nil {
			m.stats.FromPool++
		} else {
			m.stats.FromFiles++
		}
	}
	m.begin(j)
	return j, nil
}

// pin holds a block that is in the pool, or else one that was seen in files and has to come into the pool. The caller holds mu.
func (m *Manager) pin(key block.Key, name Block, seen bool) (held, error) {
	slot, err := m.pool.Open(m.now, key)
	switch {
	case err == nil:
		return held{key: key, name: m.names[key], slot: slot}, nil
	case !errors.Is(err, errdefs.ErrNotFound):
		return held{}, fmt.Errorf("another job brings it: %w", errdefs.ErrBusy)
	case !seen:
		return held{}, errdefs.ErrNotFound
	}
	return m.reserve(key, name)
}

// reserve makes room for a block. ErrExists where it is there or on its way, ErrBusy where all places are in use. The caller holds mu.
func (m *Manager) reserve(key block.Key, name Block) (held, error) {
	f, err := m.pool.Reserve(m.now, key)
	if err != nil {
		return held{}, err
	}
	m.names[key] = &name
	return held{key: key, name: &name, fill: f}, nil
}

// Store makes space for the blocks that are neither in the workers' pools nor being stored there:
// Job.Blocks, which may be empty. blocks are in the order of a prompt: the last is evicted first.
// before is the block before the first; of several, the last one counts. It may be omitted after a
// Lookup of the whole prompt. Store returns ErrBusy if there is no space for all blocks, and counts it.
// Then nothing has changed except for evictions.
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
	m.mu.Lock()
	defer m.mu.Unlock()
	j := &Job{m: m}
	for i := range keys {
		h, err := m.reserve(keys[i], blocks[i])
		switch {
		case err == nil:
			j.Blocks, j.held = append(j.Blocks, blocks[i]), append(j.held, h)
		case !errors.Is(err, errdefs.ErrExists):
			j.undo(err)
			m.stats.Refused += int64(len(blocks))
			return nil, fmt.Errorf("store %d blocks: %w", len(blocks), err)
		}
	}
	m.stats.Stored += int64(len(j.held))
	m.begin(j)
	return j, nil
}

// begin gives the job what the workers have to be told. The caller holds mu.
func (m *Manager) begin(j *Job) {
	j.Evicted, m.evicted = m.evicted, nil
	j.begun = m.clock.Now()
	m.live++
}

// undo lets go what a job holds that does not begin. What was evicted for it stays so. The caller holds mu.
func (j *Job) undo(cause error) {
	for i := range j.held {
		if h := &j.held[i]; h.slot != nil {
			h.slot.Release()
		} else {
			h.fill.Abort(cause)
			delete(j.m.names, h.key)
		}
	}
}

// End says that every worker is through with the job, and nothing touches its blocks on its behalf any more. Blocks whose places in Blocks
// are in failed are forgotten: some worker could not store them, or has found them missing or wrong. The others are there. Only the
// first call counts. ErrInvalid, and the job goes on, for a place that it does not have.
func (j *Job) End(failed ...int) error {
	bad := make([]bool, len(j.held))
	for _, i := range failed {
		if i < 0 || i >= len(bad) {
			return fmt.Errorf("end job of %d blocks: block %d is none of them: %w", len(bad), i, errdefs.ErrInvalid)
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
	if j.load && len(failed) == 0 {
		j.loaded()
	}
	for i := range j.held {
		j.m.unpin(&j.held[i], bad[i])
	}
	return nil
}

// unpin lets a block go that is there now, or is bad. The caller holds mu.
func (m *Manager) unpin(h *held, bad bool) {
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
	default:
		if bad && m.names[h.key] == h.name { // else it has been forgotten before, and may have come anew
			h.slot.Corrupt(errForgotten)
			m.gone(h.key)
		}
		h.slot.Release()
	}
}
