package store

import (
	"context"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
)

// LoadOptions says how a load runs.
type LoadOptions struct {
	// Layerwise copies shard by shard, in order, so that WaitShard(0) returns while later shards are still on their way.
	Layerwise bool
	// Progress is told of shards as WaitShard reports them, and of the end. Nil: nobody is.
	Progress Progress
}

// LoadTask is a running load. Safe for concurrent use. It need not be waited for.
type LoadTask struct {
	task
	lease    *Lease
	pages    *Pages
	layers   bool
	sums     bool // streams are asked for the sums of what they copy, and blocks are verified by them
	progress progress

	shardDone []chan struct{} // layerwise: closed when no block of the task still waits for the shard

	// The rest belongs to the task's goroutine.
	sc        *scratch
	left      int   // blocks without a result
	shardLeft []int // layerwise: blocks still waiting for each shard
	open      int   // blocks with a slot of the cache, or with a job that may give them one
	checking  int   // check jobs out
	reading   int   // fetch jobs out
	flying    []*group
	proving   []*group // whose tickets have all resolved, but not all their checks
	stopped   bool     // the task was canceled, and this has been acted on
}

// Load copies each ref's block to its page, from the first tier that has it, and verifies it by the store's policy: under
// VerifyDevice by what has reached the page. A copy that fails its check is looked into, and made again from what is
// right, a few times. A lease, where given, is of this store and pins the blocks of all refs, in any order (ErrInvalid), and
// must not have ended (ErrExpired); its pins stay until the load is done. Load waits
// until ctx ends for its turn among Config.Tasks; ctx has no say over the task once that is returned. pages stays unchanged
// until Done.
//
// Blocks fail one by one, with ErrNotFound (the block went meanwhile), ErrCorrupt (its bytes failed their check in every
// tier that had it, which dropped it, or on the page, time and again), ErrBusy (no slot came free), ErrCanceled, or the
// cause. Each error is a *BlockError, which says whether the block's page holds undefined bytes now.
func (s *Store) Load(ctx context.Context, lease *Lease, pages *Pages, refs []Ref, o LoadOptions) (*LoadTask, error) {
	fail := func(err error) (*LoadTask, error) { return nil, fmt.Errorf("load %d blocks: %w", len(refs), err) }
	if err := pages.Validate(s.cfg.Format.Layout); err != nil {
		return fail(err)
	}
	if err := s.begin(ctx); err != nil {
		return fail(err)
	}
	sc := s.take(refs)
	err := sc.pages.checkRefs(refs, pages.count(), true)
	if err == nil && lease != nil {
		err = lease.Begin(s.index, sc.keys)
	}
	if err != nil {
		s.put(sc)
		s.end()
		return fail(err)
	}
	t := &LoadTask{lease: lease, pages: pages, layers: o.Layerwise, sc: sc, left: len(refs)}
	t.init(s.loadCtx, s, len(refs))
	sc.flatten(pages)
	t.sums = s.cfg.Verify != VerifyFill && s.summable(sc.planes)
	if t.layers {
		t.shardDone, t.shardLeft = make([]chan struct{}, s.shards), make([]int, s.shards)
		for i := range t.shardDone {
			t.shardDone[i] = make(chan struct{})
			t.shardLeft[i] = len(refs)
		}
	}
	s.count.loads.Add(1)
	t.progress.begin(o.Progress, s)
	go t.run()
	return t, nil
}

// Wait waits until the task has resolved and returns the errors of its blocks, joined; or until ctx ends, and returns
// the context's cause.
func (t *LoadTask) Wait(ctx context.Context) error { return t.wait(ctx, t.done) }

// WaitShard waits until the shard is on the page of every block that will get it, verified, and returns the errors of the
// blocks that have failed so far. A shard that has been waited for is not written again. Without LoadOptions.Layerwise that
// is when the task resolves.
func (t *LoadTask) WaitShard(ctx context.Context, shard int) error {
	if shard < 0 || shard >= t.s.shards {
		return fmt.Errorf("wait for shard %d of %d: %w", shard, t.s.shards, errdefs.ErrInvalid)
	}
	if !t.layers {
		return t.wait(ctx, t.done)
	}
	return t.wait(ctx, t.shardDone[shard])
}
