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

// copyBlocks dumps todo with all shards at once, a group at a time: while one group is copied, the one before is summed
// and published.
func (t *DumpTask) copyBlocks() {
	var before *group
	for len(t.sc.todo) > 0 || before != nil {
		// Slots of the group before come free only by this goroutine's doing: it must not wait for others with those in hand.
		g := t.reserveGroup(t.s.group, before == nil)
		if g != nil {
			t.submit(g, 0, -1)
		}
		if before != nil {
			t.complete(before)
		}
		before = g
	}
}

// reserveGroup takes slots for up to n blocks of todo. With wait it waits for the first slot, the task holding none;
// further ones are taken only if they are free. Blocks that need no copy, or that another is filling, are set aside. It
// returns nil where no block was left to copy, or no slot was to be had.
func (t *DumpTask) reserveGroup(n int, wait bool) *group {
	sc := t.sc
	g := sc.group(t.s.shards, 0, t.layers)
	used := 0
	for _, i := range sc.todo {
		if len(g.refs) == n {
			break
		}
		if err := context.Cause(t.ctx); err != nil {
			t.fail(i, err)
			used++
			continue
		}
		first := wait && len(g.refs) == 0
		fill, err := t.s.reserveFor(t.ctx, sc.refs[i].Key, first)
		if err != nil && !first && isBusy(err) {
			break
		}
		used++
		switch {
		case err == nil:
			sc.items[i].fill = fill
			g.add(i, sc.refs[i].Page, fill.Index())
		case isExists(err):
			t.existing(i)
		default:
			t.fail(i, err)
		}
	}
	sc.todo = append(sc.todo[:0], sc.todo[used:]...)
	if len(g.refs) == 0 {
		sc.free(g)
		return nil
	}
	if t.sums {
		g.askSums(t.s.leafAt)
	}
	return g
}

// existing deals with a block that the cache has or that another is filling.
func (t *DumpTask) existing(i int32) {
	slot, err := t.s.cache.Open(t.s.now, t.sc.refs[i].Key)
	switch {
	case err == nil:
		t.skip(i)
		t.persist(i, slot)
	case notFound(err) || isBusy(err):
		t.sc.others = append(t.sc.others, i) // waited for when the task holds no slots
	default:
		t.fail(i, err)
	}
}

// submit copies a shard of g's pages to its slots by the group's n-th batch, or all where shard is negative, after recorded work.
func (t *DumpTask) submit(g *group, n, shard int, after ...stream.Recorded) {
	ctx := t.ctx
	if len(after) > 0 { // the stream may have to wait before it can be told to wait
		bounded, cancel := t.s.waitFor(ctx, t.s.cfg.LeaseMax)
		defer cancel()
		ctx = bounded
	}
	tk, err := t.s.dumps.submit(ctx, g.batch(n, mem.ToSlots, shard, t.sc, t.s.slots), after...)
	if err != nil {
		if ctx.Err() != nil && t.ctx.Err() == nil {
			err = fmt.Errorf("the stream was not to be told to wait in %v: %w: %w", t.s.cfg.LeaseMax, errdefs.ErrExpired, err)
		}
		g.fail(err)
		return
	}
	g.tickets = append(g.tickets, tk)
}

// complete waits until g's tickets have resolved, then sums and publishes its blocks, or aborts them.
func (t *DumpTask) complete(g *group) {
	t.quiesce(g)
	t.sourceFree(len(g.refs))
	if g.err == nil {
		g.err = context.Cause(t.ctx)
	}
	sc := t.sc
	if g.err != nil {
		for _, i := range g.refs {
			if !g.early {
				sc.items[i].fill.Abort(g.err)
			}
			sc.items[i].fill = nil
			t.one(i, g.err)
		}
		sc.free(g)
		return
	}
	for j, i := range g.refs {
		sc.items[i].group, sc.items[i].at = g, int32(j)
		t.s.checks.push(job{t, i})
	}
	for range g.refs {
		r := <-sc.results // checkers wait for nobody
		if r.err != nil {
			t.one(r.i, r.err)
			continue
		}
		slot := sc.items[r.i].slot
		sc.items[r.i].slot = nil
		t.persist(r.i, slot)
	}
	sc.free(g)
}

// quiesce waits until nothing touches g's pages and slots any more. If the task is canceled meanwhile, the fills are
// ended at once, so that nobody waits for them, and their slots go to quarantine until then.
func (t *DumpTask) quiesce(g *group) {
	stop := t.ctx.Done()
	for !g.quiet() {
		select {
		case <-g.oldest().Done():
			t.land(g)
		case <-stop:
			stop = nil
			cause := context.Cause(t.ctx)
			g.fail(cause)
			g.cancel()
			quiet := make(chan struct{})
			defer close(quiet)
			g.early = true
			for _, i := range g.refs {
				t.sc.items[i].fill.Quarantine(cause, quiet)
			}
			t.s.count.quarantined.Add(int64(len(g.refs)))
		}
	}
}

// land takes note of g's oldest ticket, which has resolved.
func (t *DumpTask) land(g *group) {
	tk := g.oldest()
	if err := tk.Err(); err != nil {
		g.fail(err)
	} else {
		g.summed[t.shardOf(g.landed)] = tk.Completion().Summed
	}
	g.landed++
	t.travelled(&t.s.dumps, &t.s.count.dump, tk)
}

// shardOf returns which shard the n-th batch of a group copied; zero for a batch of all.
func (t *DumpTask) shardOf(n int) int {
	if t.layers {
		return t.arrivals[n].shard
	}
	return 0
}

// work runs a job of the task in a pool.
func (t *DumpTask) work(kind jobKind, i int32) {
	if kind == jobWrite {
		t.write(i)
		return
	}
	it := &t.sc.items[i]
	fill := it.fill
	it.fill = nil
	err := t.seal(it, t.s.imageOf(fill.Extent()).Bytes(), t.sc.refs[i].Key)
	switch {
	case err == nil:
		it.slot, err = t.s.publish(fill)
	case bad(err):
		t.s.count.corrupt.Add(1)
		t.s.cfg.Hooks.corrupt(t.s.cache.Name(), t.sc.refs[i].Key, err)
		fallthrough
	default:
		fill.Abort(err)
	}
	t.sc.results <- result{jobCheck, i, err}
}

// seal completes the image with the checksums that came with its copy; the CPU sums what came without, and, but under
// VerifyDevice, compares what came with the slot.
func (t *DumpTask) seal(it *item, image []byte, key block.Key) error {
	f := t.s.cfg.Format
	if !t.sums {
		return f.Seal(image, key)
	}
	var few [256]uint64
	sums := few[:]
	if t.s.shards > len(few) {
		sums = make([]uint64, t.s.shards)
	}
	sums = sums[:t.s.shards]
	for k := range sums {
		summed := it.group.hasSums(k)
		if summed {
			sums[k] = block.FoldLeaves(it.group.leaves(int(it.at), k))
			if t.s.cfg.Verify == VerifyDevice {
				continue
			}
		}
		slot := f.SumShard(image, k)
		if summed && slot != sums[k] {
			return fmt.Errorf("shard %d did not reach the slot as it was read from the page: %w", k, errdefs.ErrCorrupt)
		}
		sums[k] = slot
	}
	return f.SealWith(image, key, sums)
}

// persist hands a Ready block, pinned, to the writers; without tiers below that can be written it is durable already.
func (t *DumpTask) persist(i int32, slot tier.Slot) {
	if len(t.s.durable) == 0 {
		slot.Release()
		t.one(i, nil)
		return
	}
	t.sc.items[i].slot = slot
	t.s.writers.push(job{t, i})
}

// write stores block i in every tier below that can be written.
func (t *DumpTask) write(i int32) {
	it, key := &t.sc.items[i], t.sc.refs[i].Key
	slot := it.slot
	it.slot = nil
	var errs []error
	for at, tr := range t.s.durable {
		err := context.Cause(t.ctx)
		if err == nil {
			err = t.s.writeTo(t.ctx, at, key, t.s.imageOf(slot.Extent()))
		}
		if err == nil {
			continue
		}
		if bad(err) {
			// What the tier found wrong is this copy: the transfer to the slot went wrong, or the slot's memory since.
			slot.Corrupt(err)
			t.s.count.corrupt.Add(1)
			t.s.cfg.Hooks.corrupt(t.s.cache.Name(), key, err)
		} else {
			t.s.count.tierErrors.Add(1)
		}
		errs = append(errs, fmt.Errorf("tier %s: %w", tr.Name(), err))
		t.s.count.durableFailures.Add(1)
		t.s.cfg.Hooks.durableFailed(tr.Name(), key, err)
	}
	slot.Release()
	t.one(i, errors.Join(errs...))
}

// fullWait is how long a write waits for room where the one before it waited in vain: long enough for room that there is.
const fullWait = 10 * time.Millisecond

// writeTo stores a block in a tier. It waits for room as long as the store says, but where another has just done so in vain: the waits
// of all that queue behind it must not add up.
func (s *Store) writeTo(ctx context.Context, at int, key block.Key, image mem.Extent) error {
	most := s.cfg.WaitMax
	if s.full[at].Load() {
		most = min(most, fullWait)
	}
	wait, cancel := s.waitFor(ctx, most)
	defer cancel()
	err := s.durable[at].Put(wait, key, image)
	switch {
	case err == nil:
		s.full[at].Store(false)
	case errors.Is(err, errdefs.ErrBusy) && ctx.Err() == nil:
		s.full[at].Store(true)
	}
	return err
}

// awaitOthers waits, one after another, for the blocks that somebody else was filling, and dumps those that did not come.
// The task holds no slots but those that writers are about to free.
func (t *DumpTask) awaitOthers() {
	sc := t.sc
	for len(sc.others) > 0 {
		i := sc.others[0]
		sc.others = append(sc.others[:0], sc.others[1:]...)
		it := &sc.items[i]
		slot, err := t.s.open(t.ctx, sc.refs[i].Key)
		switch {
		case err == nil:
			t.skip(i)
			t.persist(i, slot)
		case notFound(err) && it.tries < maxTries && t.ctx.Err() == nil:
			it.tries++
			t.s.count.retries.Add(1)
			sc.todo = append(sc.todo, i)
			t.copy()
		default:
			t.fail(i, err)
		}
	}
}
