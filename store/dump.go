package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier"
)

// DumpOptions says how a dump runs.
type DumpOptions struct {
	// Layerwise starts each shard by DumpTask.SubmitShard, in any order, instead of all at once.
	Layerwise bool
	// After holds what must have resolved well before the pages are read. It is waited for without an end, but for Cancel; a
	// store that is closing waits for Config.LeaseMax more, and the dump fails with ErrClosed.
	//
	// A stream.Recorded the dump's stream waits for on the device, if it can: the host waits for nothing, and the copies start
	// when the work is done. But whatever the stream is given next, of other dumps too, waits behind them, and the dump holds
	// slots meanwhile: it fails with ErrExpired if the work is not done within Config.LeaseMax, and its slots come back when
	// the work is done after all. Where the stream cannot, as NICs, it is waited for like the others.
	After []mem.Dependency
	// Before is the block before the first ref's in the prompt; zero if there is none. It makes the
	// tiers evict the end of a prompt before its beginning; nothing else depends on it. It need not
	// be given if LeasePrefix was asked for the whole prompt before.
	Before block.Key
}

// DumpTask is a running dump. It completes twice: SourceFree, then Durable. Safe for concurrent use. It need not be
// waited for, except that a layerwise dump wants all its shards.
type DumpTask struct {
	task
	pages   *Pages
	begun   time.Time
	after   []mem.Dependency
	behind  []stream.Recorded // of after, what the stream waits for; of the task's goroutine
	layers  bool
	sums    bool // streams are asked for the sums of what they copy
	srcDone chan struct{}
	pubDone chan struct{}
	shardCh chan submission // layerwise: room for every shard

	// Guarded by mu.
	given   []bool // layerwise: shards that were submitted
	left    int    // blocks without a result
	running bool   // the task's goroutine has not left
	skipped int

	// The rest belongs to the task's goroutine; an item's slot to the writer that has its job.
	sc       *scratch
	srcLeft  int          // blocks whose page may still be read
	cohorts  []*cohort    // that are copied or sealed
	arrivals []submission // layerwise: in the order of submission
	met      bool         // nothing of the client's is waited for any more: every shard has come, recorded work is done
}

// submission is a shard whose pages are ready to be read once after has resolved.
type submission struct {
	shard  int
	after  []mem.Dependency
	behind []stream.Recorded // of after, what the stream waits for
	met    bool
}

// Dump stores each ref's block from its page. The refs are in the order of a prompt; those of
// several page groups are in the order of their tokens. The last is evicted first. Blocks that
// every durable tier is known to have, whole and durable, are skipped; those that it only seems to
// have are copied, and the tier looks at what it has. A block that another is filling is waited
// for, and dumped after all if that fails. Dump waits until ctx ends for its turn among
// Config.Tasks; ctx has no say over the task once that is returned. pages stays unchanged until
// SourceFree.
//
// A block is published in the cache, and found by lookups, once all its shards have landed and are summed; it is pinned there
// until the tiers below have it. A dump may be larger than the cache: its blocks take slots as others become durable.
// Blocks fail one by one: ErrBusy (no slot came free), ErrCanceled, ErrNoSpace, or the cause. Without a cache above tiers that are all
// read-only there is no dump: ErrReadOnly.
func (s *Store) Dump(ctx context.Context, pages *Pages, refs []Ref, o DumpOptions) (*DumpTask, error) {
	fail := func(err error) (*DumpTask, error) { return nil, fmt.Errorf("dump %d blocks: %w", len(refs), err) }
	if err := pages.validate(s.formats, s.where); err != nil {
		return fail(err)
	}
	if s.passing && len(s.durable) == 0 {
		return fail(fmt.Errorf("no tier of the pipeline keeps what is written: %w", errdefs.ErrReadOnly))
	}
	if err := s.begin(ctx, s.dumping); err != nil {
		return fail(err)
	}
	sc := s.take(refs)
	sc.pages.lay(pages, s.layers, false)
	if err := sc.pages.check(refs, sc.items, s.formats, false); err != nil {
		s.put(sc)
		s.end(s.dumping)
		return fail(err)
	}
	t := &DumpTask{pages: pages, layers: o.Layerwise, sc: sc, left: len(refs), running: true, srcLeft: len(refs), begun: s.clock.Now(), srcDone: make(chan struct{}), pubDone: make(chan struct{})}
	t.init(s.dumpCtx, s, len(refs))
	t.after = append(t.after, o.After...)
	if t.layers {
		t.shardCh, t.given = make(chan submission, s.shards), make([]bool, s.shards)
	}
	sc.flatten(s, pages)
	t.sums = s.summable(sc.planes)
	s.index.Use(o.Before, sc.keys)
	s.count.dumps.Add(1)
	s.runners.start(t)
	return t, nil
}

// SubmitShard says that the shard's pages may be read once after has resolved well. Each shard of a layerwise dump is
// submitted once, in any order; within Config.LeaseMax of the one before, or the dump fails with ErrExpired, as it does where
// after takes longer than that to resolve: the dump holds slots meanwhile. See DumpOptions.After for a stream.Recorded. It does
// not wait. Errors: ErrInvalid for a dump that
// is not layerwise or a shard that it lacks, ErrExists for a second time, ErrCanceled and others once the dump has been canceled.
func (t *DumpTask) SubmitShard(ctx context.Context, shard int, after ...mem.Dependency) error {
	fail := func(err error) error { return fmt.Errorf("submit shard %d of %d: %w", shard, t.s.shards, err) }
	if !t.layers {
		return fail(fmt.Errorf("the dump is not layerwise: %w", errdefs.ErrInvalid))
	}
	if shard < 0 || shard >= t.s.shards {
		return fail(errdefs.ErrInvalid)
	}
	if ctx.Err() != nil {
		return fail(context.Cause(ctx))
	}
	// A task that ended well has no cause but the plain one; its late shards are accepted, and do nothing.
	if cause := context.Cause(t.ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return fail(cause)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.give(shard); err != nil {
		return fail(err)
	}
	t.shardCh <- submission{shard: shard, after: after} // has room: each shard comes once
	return nil
}

func (t *DumpTask) give(shard int) error {
	if t.given[shard] {
		return errdefs.ErrExists
	}
	t.given[shard] = true
	return nil
}

// SourceFree waits until no page will be read any more, by this task or by hardware on its behalf, and returns nil; or
// until ctx ends, and returns the context's cause. Whether the blocks were stored is another question: Durable.
func (t *DumpTask) SourceFree(ctx context.Context) error {
	select {
	case <-t.srcDone:
		return nil
	default:
	}
	select {
	case <-t.srcDone:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Published waits until lookups find every block, or it has failed, and returns nil; or until ctx ends, and returns the
// context's cause. Whether the blocks were stored is another question: Durable.
func (t *DumpTask) Published(ctx context.Context) error {
	select {
	case <-t.pubDone:
		return nil
	default:
	}
	select {
	case <-t.pubDone:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Durable waits until every block is in every durable tier, or has failed, and returns the errors of the blocks, joined;
// or until ctx ends, and returns the context's cause and what the blocks still wait for. A block waits for Config.WaitMax at
// most for room in a tier, and for as long as the system takes to write it.
func (t *DumpTask) Durable(ctx context.Context) error {
	err := t.wait(ctx, t.done)
	select {
	case <-t.done:
		return err
	default:
		return t.delay(err)
	}
}

// delay says what a dump that is not durable yet waits for.
func (t *DumpTask) delay(cause error) error {
	t.mu.Lock()
	left := t.left
	t.mu.Unlock()
	errs := []error{fmt.Errorf("%d blocks are not durable yet, %d writes wait for a writer: %w", left, t.s.writers.backlog(), cause)}
	for _, tr := range t.s.durable {
		st, ok := tr.(tier.Statter)
		if !ok {
			continue
		}
		stats := st.Stats()
		if stats.Waiting > 0 {
			errs = append(errs, fmt.Errorf("tier %s: %d writes wait for room", tr.Name(), stats.Waiting))
		}
		if err := errors.Join(stats.Paused, stats.Failure); err != nil {
			errs = append(errs, fmt.Errorf("tier %s: %w", tr.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// Skipped returns how many blocks the dump did not have to copy, since the store had them already or another dump brought
// them meanwhile. Only blocks that are durable count.
func (t *DumpTask) Skipped() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.skipped
}

// run owns the task until its blocks are published; writers resolve it.
func (t *DumpTask) run() {
	if err := t.ready(); err != nil {
		t.failAll(err)
	} else {
		t.copy()
		t.awaitOthers()
	}
	close(t.pubDone)
	t.one(-1, nil)
}

// ready waits for what the dump comes after, and sorts out what need not be copied.
func (t *DumpTask) ready() error {
	t.after, t.behind = t.s.dumps.SplitDeps(t.ctx, t.after)
	t.met = !t.layers && len(t.behind) == 0
	if err := t.meet(t.after); err != nil {
		return err
	}
	t.sort()
	return nil
}

// copy dumps todo.
func (t *DumpTask) copy() {
	t.copyHeld()
	t.copyBlocks()
}

// sort gives blocks that are durable their result and leaves the others in todo.
func (t *DumpTask) sort() {
	sc := t.sc
	sc.kept, sc.durable = sc.kept[:0], sc.durable[:0]
	for range sc.refs {
		sc.kept = append(sc.kept, false)
		sc.durable = append(sc.durable, true)
	}
	where := t.s.durable
	if len(where) == 0 {
		where = []tier.Tier{t.s.cache}
	}
	for _, tr := range where {
		clear(sc.kept)
		if k, ok := tr.(tier.Keeper); ok {
			if err := k.Kept(t.ctx, sc.keys, sc.kept); err != nil {
				clear(sc.kept) // storing a block twice is no harm; storing it never would be
				if t.ctx.Err() == nil && len(sc.keys) > 0 {
					t.s.index.FellBack(tr, sc.keys[0], err)
				}
			}
		}
		for i, kept := range sc.kept {
			sc.durable[i] = sc.durable[i] && kept
		}
	}
	n := 0
	for _, i := range sc.todo {
		if sc.durable[i] {
			t.skip(i)
			t.one(i, nil)
			continue
		}
		sc.todo[n] = i
		n++
	}
	sc.todo = sc.todo[:n]
}

// skip notes that the block is there without this dump's doing.
func (t *DumpTask) skip(i int32) {
	t.sc.items[i].skip = true
	t.sourceFree(1)
}

// sourceFree counts n blocks whose pages are read no more.
func (t *DumpTask) sourceFree(n int) {
	if t.srcLeft -= n; t.srcLeft == 0 && n > 0 {
		t.free()
	}
}

// free says that no page is read any more.
func (t *DumpTask) free() {
	t.s.took(&t.s.count.freed, t.begun)
	close(t.srcDone)
}

// fail gives block i, whose page is read no more, its result.
func (t *DumpTask) fail(i int32, err error) {
	t.sourceFree(1)
	t.one(i, err)
}

func (t *DumpTask) failAll(err error) {
	for _, i := range t.sc.todo {
		t.fail(i, err)
	}
	t.sc.todo = t.sc.todo[:0]
}

// one gives block i its result, or the task's goroutine (i < 0) its leave. The last resolves the task.
func (t *DumpTask) one(i int32, err error) {
	if i >= 0 {
		c := &t.s.count
		switch {
		case err != nil:
			c.dumpErrors.Add(1)
			t.set(i, BlockError{Op: "dump", Key: t.sc.refs[i].Key, Page: t.sc.refs[i].Page, Err: err})
		case t.sc.items[i].skip:
			c.skipped.Add(1)
		default:
			c.dumped.Add(1)
		}
	} else if t.blocks == 0 {
		t.free()
	}
	t.mu.Lock()
	if i < 0 {
		t.running = false
	} else {
		t.left--
		if err == nil && t.sc.items[i].skip {
			t.skipped++
		}
	}
	last := t.left == 0 && !t.running
	t.mu.Unlock()
	if !last {
		return
	}
	t.s.put(t.sc)
	t.sc = nil
	t.s.took(&t.s.count.durable, t.begun)
	t.cancel(nil)
	close(t.done)
	t.s.end(t.s.dumping)
}
