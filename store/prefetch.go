package store

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store/admission"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/store/task"
	"github.com/kvlane/kvlane/tier"
)

// PrefetchTask is a running prefetch. Waiting for it is optional. All methods are safe for
// concurrent use.
type PrefetchTask struct {
	*task.Handle
	base *task.Task
	s    *Store
	keys []block.Key
	refs atomic.Int64 // jobs that have not finished, and one for Prefetch itself

	probe     admission.Source // measures its time: see Store.Worth. Memory: no probe
	startedAt time.Time
	bytes     [admission.Sources]atomic.Int64 // read
}

// Prefetch reads blocks into the cache. It pins nothing: the cache may evict them like any other
// block. Blocks that are in the cache, or that another task fills, are skipped. Prefetches yield to
// loads and never wait for a slot. Blocks fail with ErrBusy if no slot is free, and with
// ErrNotFound if no tier has them. A zero key is ErrInvalid. Without a cache Prefetch does nothing.
// Like Load, it waits until it may start or ctx ends.
func (s *Store) Prefetch(ctx context.Context, keys []block.Key) (*PrefetchTask, error) {
	return s.prefetch(ctx, keys, admission.Memory)
}

func (s *Store) prefetch(ctx context.Context, keys []block.Key, probe admission.Source) (*PrefetchTask, error) {
	if err := block.CheckKeys(keys); err != nil {
		return nil, fmt.Errorf("prefetch %d blocks: %w", len(keys), err)
	}
	if err := s.sched.Begin(ctx, task.Load); err != nil {
		return nil, fmt.Errorf("prefetch %d blocks: %w", len(keys), err)
	}
	p := s.pipeline
	base := task.New(ctx, p, s.sched, task.Load, "prefetch", len(keys))
	t := &PrefetchTask{
		Handle: &base.Handle, base: base, s: s, keys: append([]block.Key(nil), keys...),
		probe: probe, startedAt: p.Clock.Now(),
	}
	t.refs.Store(1)
	p.Index.Use(block.Key{}, t.keys)
	p.Count.Prefetches.Add(1)
	if p.Transient {
		t.release()
		return t, nil
	}
	states := make([]tier.State, len(keys))
	if err := p.Cache.Lookup(t.base.Context(), t.keys, states); err != nil {
		clear(states)
		if t.base.Context().Err() == nil && len(keys) > 0 {
			p.Index.FellBack(p.Cache, keys[0], err)
		}
	}
	for i := range t.keys {
		switch {
		case states[i] == tier.Ready || states[i] == tier.Filling:
		case len(p.Lower) == 0:
			t.setErr(int32(i), errdefs.ErrNotFound)
		default:
			t.refs.Add(1)
			s.readers.PushDelayed((*prefetchJob)(t), int32(i))
		}
	}
	t.release()
	return t, nil
}

// Wait waits until the prefetch has ended and returns the errors of its blocks, joined. If ctx ends
// first, it returns the cause of ctx.
func (t *PrefetchTask) Wait(ctx context.Context) error { return t.base.Wait(ctx, t.base.Done()) }

// prefetchJob is the job that reads a block of a prefetch.
type prefetchJob PrefetchTask

// Run implements pool.Job: it reads block i.
func (j *prefetchJob) Run(i int32) {
	t := (*PrefetchTask)(j)
	err := t.base.Context().Err()
	var slot tier.Slot
	var from int8
	if err == nil {
		slot, from, err = t.s.pipeline.Fetch(t.base.Context(), t.keys[i:i+1], pipeline.FetchOptions{})
	}
	switch {
	case err == nil:
		slot.Release()
		t.s.pipeline.Count.Prefetched.Add(1)
		t.bytes[t.s.pipeline.Source(from)].Add(t.s.cfg.Formats.ImageBytes(t.keys[i]))
	case pipeline.IsExists(err): // another task has read it or is reading it
	default:
		t.setErr(i, err)
	}
	t.release()
}

func (t *PrefetchTask) setErr(i int32, err error) {
	t.base.SetErr(i, BlockError{Op: "prefetch", Key: t.keys[i], Err: err})
}

// release drops one reference. The last one ends the task.
func (t *PrefetchTask) release() {
	if t.refs.Add(-1) > 0 {
		return
	}
	now := t.s.cfg.Clock.Now()
	took := now.Sub(t.startedAt)
	var bytes admission.Bytes
	for s := range bytes {
		bytes[s] = t.bytes[s].Load()
	}
	if bytes != (admission.Bytes{}) {
		t.s.admission.Loaded(bytes, took)
	}
	if t.probe != admission.Memory {
		t.s.admission.Probed(t.probe, now, took)
	}
	t.base.SetDone()
	t.s.pipeline.HasEnded("prefetch", len(t.keys), t.startedAt, t.base.Err)
	t.s.sched.End(task.Load)
}
