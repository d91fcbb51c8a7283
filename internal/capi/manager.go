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
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/settings"
)

// manager is an index of the blocks that engines in other processes store.
type manager struct{ *kvlane.Manager }

func (*manager) kind() kind   { return managerKind }
func (m *manager) of() object { return m }

// job is a manager's job that all workers execute.
type job struct {
	*kvlane.Job
	manager *manager
}

func (*job) kind() kind   { return jobKind }
func (j *job) of() object { return j.manager }

// Names identify blocks by page group and hash. If Groups is nil, all blocks belong to group 0.
type Names struct {
	Groups    []uint32
	Hashes    []byte
	HashBytes int
	N         int
}

// blocks converts the names to kvlane.Blocks.
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

// OpenManager opens a manager. config is a JSON object: "ranks" is the list of the workers' engine
// configurations, "blocks" the number of blocks of each worker's pool, "metrics_addr" an address.
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

// ParseManagerConfig parses the configuration of a manager and validates the configurations of its
// ranks. The error lists all errors.
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

// CloseManager closes a manager. If it returns nil, the handles of the manager and its jobs are no
// longer valid.
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

// manage returns the manager and the named blocks.
func (l *Library) manage(h Handle, n *Names) (*manager, []kvlane.Block, error) {
	m, err := find[*manager](&l.handles, h)
	if err != nil {
		return nil, nil, err
	}
	blocks, err := n.blocks()
	return m, blocks, err
}

// States of a block that ManagerLookup writes.
const (
	Absent   uint8 = 0
	UnderWay uint8 = 1
	There    uint8 = 2 // in memory of every worker
	Below    uint8 = 3 // in files, but not in every worker's memory
	Remote   uint8 = 4 // in block servers, but not in every worker's memory or files
)

// ManagerLookup writes the state of each block. If a tier does not respond, it uses the other tiers
// and also returns an error.
func (l *Library) ManagerLookup(h Handle, n *Names, states []uint8) error {
	m, blocks, err := l.manage(h, n)
	if err != nil {
		return err
	}
	found, err := m.Lookup(context.Background(), blocks)
	for i, s := range found {
		states[i] = uint8(s) // a test checks that the numbers are equal
	}
	return err
}

// ManagerWorth returns the number of blocks, starting with the first, for which loading is faster
// than computing. states is the result of ManagerLookup. tokens is the number of tokens of all
// blocks, and rest the number that is computed in any case.
func (l *Library) ManagerWorth(h Handle, n *Names, states []uint8, tokens, rest int64) (int, error) {
	m, blocks, err := l.manage(h, n)
	if err != nil {
		return 0, err
	}
	if err := checkTokens(tokens, rest); err != nil {
		return 0, err
	}
	known := make([]kvlane.BlockState, len(states))
	for i, s := range states {
		known[i] = kvlane.BlockState(s)
	}
	return m.Worth(blocks, known, tokens, rest), nil
}

// ManagerComputed records the time in which the KV cache of a number of tokens was computed.
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

// ManagerLoad starts a job in which workers load blocks. It pins the blocks.
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

// ManagerStore starts a job in which workers store blocks. It makes space for them and writes 1 to
// chosen for each block of the job. A job may have no blocks.
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
	for i := range blocks { // the job's blocks are a subset in the same order
		if k < len(j.Blocks) && blocks[i] == j.Blocks[k] {
			chosen[i] = 1
			k++
		}
	}
	return l.handles.add(&job{j, m}), nil
}

// JobEvicted writes the blocks that the workers must drop before they store. JobSize returns their
// number. Each hash has hashBytes bytes.
func (l *Library) JobEvicted(h Handle, groups []uint32, hashes []byte, hashBytes int) error {
	j, err := find[*job](&l.handles, h)
	if err != nil {
		return err
	}
	if len(groups) != len(j.Evicted) || len(hashes) != hashBytes*len(groups) {
		return invalid("space for %d evicted blocks with %d bytes of hashes, the job has %d", len(groups), len(hashes), len(j.Evicted))
	}
	for i, b := range j.Evicted {
		if len(b.Hash) != hashBytes {
			return invalid("a hash of the evicted blocks has %d bytes, not %d", len(b.Hash), hashBytes)
		}
		groups[i] = uint32(b.Group)
		copy(hashes[i*hashBytes:], b.Hash)
	}
	return nil
}

// ManagerSetAnchors records the anchors of blocks.
func (l *Library) ManagerSetAnchors(h Handle, n, anchors *Names) error {
	m, blocks, err := l.manage(h, n)
	if err != nil {
		return err
	}
	of, err := anchors.blocks()
	if err != nil {
		return err
	}
	return m.SetAnchors(blocks, of)
}

// JobAnchors writes the anchor of each block of a job. If no tier needs anchors, it returns
// ErrNotFound.
func (l *Library) JobAnchors(h Handle, anchors []kvlane.Key) error {
	j, err := find[*job](&l.handles, h)
	if err != nil {
		return err
	}
	if j.Anchors == nil && len(j.Blocks) > 0 {
		return fmt.Errorf("no tier needs the anchors of job %d: %w", h, errdefs.ErrNotFound)
	}
	if len(anchors) != len(j.Anchors) {
		return invalid("space for %d anchors, the job has %d", len(anchors), len(j.Anchors))
	}
	copy(anchors, j.Anchors)
	return nil
}

// JobSize returns the number of blocks of a job and the number of blocks that workers must drop
// first.
func (l *Library) JobSize(h Handle) (blocks, evicted int, err error) {
	j, err := find[*job](&l.handles, h)
	if err != nil {
		return 0, 0, err
	}
	return len(j.Blocks), len(j.Evicted), nil
}

// JobLoaded records the durations of a load job. Call it before JobEnd.
func (l *Library) JobLoaded(h Handle, seconds, wait float64) error {
	j, err := find[*job](&l.handles, h)
	if err != nil {
		return err
	}
	elapsed, err := duration(seconds)
	waited, err2 := duration(wait)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	j.Loaded(elapsed, waited)
	return nil
}

// JobDirect reports whether the workers load blocks of files directly to the device.
func (l *Library) JobDirect(h Handle) (bool, error) {
	j, err := find[*job](&l.handles, h)
	if err != nil {
		return false, err
	}
	return j.Direct, nil
}

// Pooled marks, in the results of JobEnd, a block of a direct job that is in a worker's pool.
const Pooled uint8 = 2

// JobEnd ends a job and frees its handle. It removes the blocks whose element of failed is neither
// zero nor Pooled from the index. A nil failed means that no block failed.
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

// ManagerForget removes blocks from the index.
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

// ManagerReset removes all blocks in the workers' pools that no job uses from the index.
func (l *Library) ManagerReset(h Handle) error {
	m, err := find[*manager](&l.handles, h)
	if err != nil {
		return err
	}
	m.Reset()
	return nil
}

// ManagerStats returns a manager's statistics as a JSON object.
func (l *Library) ManagerStats(h Handle) ([]byte, error) {
	m, err := find[*manager](&l.handles, h)
	if err != nil {
		return nil, err
	}
	return json.Marshal(figures(reflect.ValueOf(m.Stats())))
}

// SetAnchors records the anchors of blocks in an engine.
func (l *Library) SetAnchors(h Handle, keys, anchors []kvlane.Key) error {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return err
	}
	return e.SetAnchors(keys, anchors)
}

// Drop removes blocks from an engine's cache. It returns the number of blocks that are in use and
// stay for now.
func (l *Library) Drop(h Handle, keys []kvlane.Key) (stay int, err error) {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return 0, err
	}
	return e.Drop(context.Background(), keys)
}
