package capi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/internal/settings"
)

// manager is the index of the blocks that engines in other processes have.
type manager struct{ *kvlane.Manager }

func (*manager) kind() kind   { return managerKind }
func (m *manager) of() object { return m }

// job is a job of a manager for all workers.
type job struct {
	*kvlane.Job
	manager *manager
}

func (*job) kind() kind   { return jobKind }
func (j *job) of() object { return j.manager }

// Names name blocks by page group and hash. Without groups, all are of the first.
type Names struct {
	Groups    []uint32
	Hashes    []byte
	HashBytes int
	N         int
}

// blocks returns them as the manager wants them.
func (n *Names) blocks() ([]kvlane.Block, error) {
	switch {
	case n.HashBytes < 1 || n.HashBytes > math.MaxInt/max(1, n.N) || len(n.Hashes) != n.HashBytes*n.N:
		return nil, invalid("%d bytes of hashes, expected %d of %d bytes", len(n.Hashes), n.N, n.HashBytes)
	case n.Groups != nil && len(n.Groups) != n.N:
		return nil, invalid("%d page groups for %d blocks", len(n.Groups), n.N)
	}
	out := make([]kvlane.Block, n.N)
	all := string(n.Hashes)
	for i := range out {
		out[i].Hash = all[i*n.HashBytes : (i+1)*n.HashBytes]
		if n.Groups != nil {
			out[i].Group = int(n.Groups[i])
		}
	}
	return out, nil
}

// OpenManager opens a manager. config is JSON: {"ranks": [configurations of the workers' engines],
// "blocks": of each worker, "metrics_addr": address}.
func (l *Library) OpenManager(config []byte) (Handle, error) {
	c, err := ParseManagerConfig(config)
	if err != nil {
		return 0, fmt.Errorf("open manager: %w", err)
	}
	m, err := kvlane.OpenManager(context.Background(), c)
	if err != nil {
		return 0, err
	}
	return l.handles.add(&manager{m}), nil
}

// ParseManagerConfig reads the configuration of a manager and validates those of its ranks. The
// error lists everything that is wrong.
func ParseManagerConfig(text []byte) (kvlane.ManagerConfig, error) {
	var c kvlane.ManagerConfig
	err := settings.Decode(text, &c)
	if errors.Is(err, settings.ErrIncomplete) {
		return kvlane.ManagerConfig{}, err
	}
	errs := []error{err}
	if c.Blocks < 0 {
		errs = append(errs, invalid("configuration: blocks is %d, which is negative", c.Blocks))
	}
	for i := range c.Ranks {
		setDefaults(&c.Ranks[i])
		if err := c.Ranks[i].Validate(); err != nil {
			errs = append(errs, fmt.Errorf("rank %d: %w", i, err))
		}
	}
	return c, errors.Join(errs...)
}

// CloseManager closes a manager. If it returns nil, its handle and those of its jobs have ended.
func (l *Library) CloseManager(h Handle, timeoutMillis int64) error {
	m, err := find[*manager](&l.handles, h)
	if err != nil {
		return err
	}
	ctx, cancel := l.within(timeoutMillis)
	defer cancel()
	if err := m.Close(ctx); err != nil {
		return err
	}
	l.handles.removeOf(m)
	return nil
}

// manage finds the manager, and the blocks that are named.
func (l *Library) manage(h Handle, n *Names) (*manager, []kvlane.Block, error) {
	m, err := find[*manager](&l.handles, h)
	if err != nil {
		return nil, nil, err
	}
	blocks, err := n.blocks()
	return m, blocks, err
}

// The states of a block that ManagerLookup writes.
const (
	Absent   uint8 = 0
	UnderWay uint8 = 1
	There    uint8 = 2 // in memory
	Below    uint8 = 3 // there, in files and not in every worker's memory
)

// ManagerLookup writes the state of each block. If a tier does not answer, it writes the states
// from the other tiers and returns an error.
func (l *Library) ManagerLookup(h Handle, n *Names, states []uint8) error {
	m, blocks, err := l.manage(h, n)
	if err != nil {
		return err
	}
	found, err := m.Lookup(context.Background(), blocks)
	for i, s := range found {
		states[i] = uint8(s) // they have the same numbers, which a test holds
	}
	return err
}

// ManagerWorth returns the number of blocks, from the first on, that are worth loading. states are
// those of ManagerLookup. tokens is the number of tokens that all blocks save.
func (l *Library) ManagerWorth(h Handle, n *Names, states []uint8, tokens int64) (int, error) {
	m, blocks, err := l.manage(h, n)
	if err != nil {
		return 0, err
	}
	if tokens < 0 || tokens > maxTokens {
		return 0, invalid("%d tokens: out of range", tokens)
	}
	known := make([]kvlane.BlockState, len(states))
	for i, s := range states {
		known[i] = kvlane.BlockState(s)
	}
	return m.Worth(blocks, known, tokens), nil
}

// ManagerComputed records the time that computing the KV of tokens took.
func (l *Library) ManagerComputed(h Handle, tokens int64, seconds float64) error {
	m, err := find[*manager](&l.handles, h)
	if err != nil {
		return err
	}
	if tokens < 1 || tokens > maxTokens || !(seconds > 0 && seconds <= maxSeconds) {
		return invalid("%d tokens in %v s: out of range", tokens, seconds)
	}
	m.Computed(tokens, time.Duration(seconds*float64(time.Second)))
	return nil
}

// ManagerLoad pins blocks that workers load.
func (l *Library) ManagerLoad(h Handle, n *Names) (Handle, error) {
	m, blocks, err := l.manage(h, n)
	if err != nil {
		return 0, err
	}
	j, err := m.Load(context.Background(), blocks)
	if err != nil {
		return 0, err
	}
	return l.handles.add(&job{j, m}), nil
}

// ManagerStore makes space for blocks that workers store, and writes 1 for each block of the job. A
// job may have no blocks.
func (l *Library) ManagerStore(h Handle, n *Names, chosen []uint8, before ...*Names) (Handle, error) {
	m, blocks, err := l.manage(h, n)
	if err != nil {
		return 0, err
	}
	var earlier []kvlane.Block
	for _, b := range before {
		if earlier, err = b.blocks(); err != nil {
			return 0, err
		}
	}
	clear(chosen)
	j, err := m.Store(blocks, earlier...)
	if err != nil {
		return 0, err
	}
	k := 0
	for i := range blocks { // the job's are some of them, in their order
		if k < len(j.Blocks) && blocks[i] == j.Blocks[k] {
			chosen[i] = 1
			k++
		}
	}
	return l.handles.add(&job{j, m}), nil
}

// JobEvicted writes the blocks that the workers drop first. JobSize returns their number; their
// hashes have hashBytes each.
func (l *Library) JobEvicted(h Handle, groups []uint32, hashes []byte, hashBytes int) error {
	j, err := find[*job](&l.handles, h)
	if err != nil {
		return err
	}
	if len(groups) != len(j.Evicted) || len(hashes) != hashBytes*len(groups) {
		return invalid("space for %d evicted blocks with %d bytes of hashes, job %d has %d", len(groups), len(hashes), h, len(j.Evicted))
	}
	for i, b := range j.Evicted {
		if len(b.Hash) != hashBytes {
			return invalid("the hash of an evicted block has %d bytes, not %d", len(b.Hash), hashBytes)
		}
		groups[i] = uint32(b.Group)
		copy(hashes[i*hashBytes:], b.Hash)
	}
	return nil
}

// JobSize returns how many blocks a job is about, and how many workers drop first.
func (l *Library) JobSize(h Handle) (blocks, evicted int, err error) {
	j, err := find[*job](&l.handles, h)
	if err != nil {
		return 0, 0, err
	}
	return len(j.Blocks), len(j.Evicted), nil
}

// JobLoaded records the times of a job that loads, before its end.
func (l *Library) JobLoaded(h Handle, seconds, wait float64, tokens int64) error {
	j, err := find[*job](&l.handles, h)
	if err != nil {
		return err
	}
	if tokens < 0 || tokens > maxTokens {
		return invalid("%d tokens: out of range", tokens)
	}
	elapsed, err := duration(seconds)
	waited, err2 := duration(wait)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	j.Loaded(elapsed, waited, tokens)
	return nil
}

// JobDirect reports whether the workers load the blocks of files directly.
func (l *Library) JobDirect(h Handle) (bool, error) {
	j, err := find[*job](&l.handles, h)
	if err != nil {
		return false, err
	}
	return j.Direct, nil
}

// Pooled is set in a result of JobEnd for a block of a direct job that is in a worker's pool.
const Pooled uint8 = 2

// JobEnd ends a job and frees its handle. It forgets the blocks whose element in failed is neither
// zero nor Pooled; none if failed is nil.
func (l *Library) JobEnd(h Handle, failed []uint8) error {
	j, err := find[*job](&l.handles, h)
	if err != nil {
		return err
	}
	if failed != nil && len(failed) != len(j.Blocks) {
		return invalid("%d results for the job's %d blocks", len(failed), len(j.Blocks))
	}
	var bad, pooled []int
	for i, f := range failed {
		if f&^Pooled != 0 {
			bad = append(bad, i)
		}
		if f&Pooled != 0 {
			pooled = append(pooled, i)
		}
	}
	if err := errors.Join(j.FellBack(pooled...), j.End(bad...)); err != nil {
		return err
	}
	l.handles.remove(h)
	return nil
}

// ManagerForget makes blocks misses.
func (l *Library) ManagerForget(h Handle, n *Names) error {
	m, blocks, err := l.manage(h, n)
	if err != nil {
		return err
	}
	return m.Forget(blocks)
}

// ManagerTouch marks blocks as used.
func (l *Library) ManagerTouch(h Handle, n *Names) error {
	m, blocks, err := l.manage(h, n)
	if err != nil {
		return err
	}
	return m.Touch(blocks)
}

// ManagerReset forgets all blocks in the workers' pools that no job has in use.
func (l *Library) ManagerReset(h Handle) error {
	m, err := find[*manager](&l.handles, h)
	if err != nil {
		return err
	}
	m.Reset()
	return nil
}

// ManagerStats returns a manager's figures as a JSON object.
func (l *Library) ManagerStats(h Handle) ([]byte, error) {
	m, err := find[*manager](&l.handles, h)
	if err != nil {
		return nil, err
	}
	return json.Marshal(figures(reflect.ValueOf(m.Stats())))
}

// Drop removes blocks from an engine's cache, and returns the number of those that stay for now.
func (l *Library) Drop(h Handle, keys []kvlane.Key) (stay int, err error) {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return 0, err
	}
	return e.Drop(context.Background(), keys)
}
