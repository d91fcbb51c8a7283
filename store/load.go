package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// LoadOptions says how a load runs.
type LoadOptions struct {
	// Layerwise copies shard by shard, in order, so that WaitShard(0) returns while later shards are still on their way. The shards
	// of a load are the layers of the model, over all page groups; a block has those of its group. Some come together: see Config.PartBytes
	// and RowBytes.
	Layerwise bool
	// After holds what must have resolved well before the pages are written, such as work of a stream that still reads or writes them. The
	// host waits for it, a stream.Recorded too: on the device all that the stream of loads is given next would wait as well. It is waited for
	// without an end, but for Cancel and the store's Close; a load that waits keeps its lease's blocks and no others. Where
	// one has failed the load fails, and its pages are as they were.
	After []mem.Dependency
	// Before is the block before the first ref's in the prompt; zero if there is none. It need not
	// be given with a lease. It makes the tiers evict the end of a prompt before its beginning;
	// nothing else depends on it.
	Before block.Key
	// Progress is told of shards as WaitShard reports them, and of the end. Nil: nobody is.
	Progress Progress
}

// LoadTask is a running load. Safe for concurrent use. It need not be waited for.
type LoadTask struct {
	task
	lease    *Lease
	after    []mem.Dependency // nil once it is not waited for any more
	pages    *Pages
	layers   bool
	sums     bool // streams are asked for the sums of what they copy, and blocks are verified by them
	raw      bool // blocks are read from below without being verified, since their copies are
	progress progress

	reached gate // layerwise: of shards that no block of the task still waits for

	// The rest belongs to the goroutine that has the task.
	sc        *scratch
	left      int       // blocks without a result
	begun     time.Time // when the task began, and then what it has brought from the cache and from below
	memory    int64
	files     int64
	shardLeft []int      // layerwise: blocks still waiting for each shard
	open      int        // blocks with a slot of the cache, or with a job that may give them one
	checking  int        // check jobs out
	reading   int        // fetch jobs out
	cohorts   []*cohort  // that are copied, or whose copies are checked
	two       [2]*cohort // room for them, of which there are seldom more
	flying    int        // of them, those that are copied
	stopped   bool       // the task was canceled, and this has been acted on
}

// Load copies each ref's block to its page, from the first tier that has it, and verifies it by the store's policy: under
// VerifyDevice by what has reached the page. A copy that fails its check is looked into, and made again from what is
// right, a few times. A lease, where given, is of this store and pins the blocks of all refs, in any order (ErrInvalid), and
// must not have ended (ErrExpired); its pins stay until the load is done. Load waits
// until ctx ends for its turn among Config.Tasks; ctx has no say over the task once that is returned. pages stays unchanged
// until Done.
//
// Blocks fail one by one, with ErrNotFound (the block went meanwhile), ErrCorrupt (its bytes failed their check in every
// tier that had it, which dropped it, or on the page, time and again), ErrBusy (no slot came free), ErrExpired (all of them: streams
// went on without the load, see Progress), ErrCanceled, or the cause. Each error is a *BlockError, which says whether the block's page holds undefined bytes now.
func (s *Store) Load(ctx context.Context, lease *Lease, pages *Pages, refs []Ref, o LoadOptions) (*LoadTask, error) {
	fail := func(err error) (*LoadTask, error) { return nil, fmt.Errorf("load %d blocks: %w", len(refs), err) }
	if err := pages.validate(s.formats, s.where); err != nil {
		return fail(err)
	}
	if err := s.begin(ctx, s.turns); err != nil {
		return fail(err)
	}
	sc := s.take(refs)
	sc.pages.lay(pages, s.layers, true)
	err := sc.pages.check(refs, sc.items, s.formats, true)
	if err == nil && lease != nil {
		err = lease.Begin(s.index, sc.keys)
	}
	if err != nil {
		s.put(sc)
		s.end(s.turns)
		return fail(err)
	}
	t := &LoadTask{lease: lease, pages: pages, layers: o.Layerwise, sc: sc, left: len(refs), begun: s.clock.Now()}
	t.init(s.loadCtx, s, len(refs))
	t.cohorts = t.two[:0]
	sc.flatten(s, pages)
	t.sums = s.cfg.Verify != VerifyFill && s.summable(sc.planes)
	if t.raw = t.sums && s.cfg.Verify == VerifyDevice && s.reads; t.raw {
		sc.unprove(s)
	}
	if t.layers {
		t.countShards()
	}
	if pending(o.After) {
		t.after = slices.Clone(o.After)
	}
	if lease == nil && len(s.next) > 0 {
		s.index.Use(o.Before, sc.keys)
	}
	s.count.loads.Add(1)
	t.progress.begin(o.Progress, t)
	s.runners.start(t)
	return t, nil
}

// countShards counts the blocks that wait for each shard: those of its page group.
func (t *LoadTask) countShards() {
	t.sc.counts = slices.Grow(t.sc.counts[:0], t.s.shards)[:t.s.shards]
	t.shardLeft = t.sc.counts
	var blocks [block.MaxGroups]int
	for i := range t.sc.items {
		blocks[t.sc.items[i].group]++
	}
	for k, w := range t.s.where {
		t.shardLeft[k] = blocks[w.group]
	}
	t.reach()
}

// reach tells how many shards no block waits for any more, from the first on.
func (t *LoadTask) reach() {
	n := t.reached.at()
	for n < len(t.shardLeft) && t.shardLeft[n] == 0 {
		n++
	}
	if t.reached.pass(n) {
		t.progress.advance(n)
	}
}

// Wait waits until the task has resolved and returns the errors of its blocks, joined; or until ctx ends, and returns
// the context's cause.
func (t *LoadTask) Wait(ctx context.Context) error {
	return t.wait(ctx, t.done)
}

// WaitShard waits until the shard, and those before it, are on the page of every block that will get them, verified, and returns the
// errors of the blocks that have failed so far. A shard that has been waited for is not written again. Without LoadOptions.Layerwise that
// is when the task resolves.
func (t *LoadTask) WaitShard(ctx context.Context, shard int) error {
	if shard < 0 || shard >= t.s.shards {
		return fmt.Errorf("wait for shard %d of %d: %w", shard, t.s.shards, errdefs.ErrInvalid)
	}
	if !t.layers {
		return t.wait(ctx, t.done)
	}
	return t.wait(ctx, t.reached.beyond(shard))
}
