package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
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
			t.submit(g, 0, t.sc.planes)
		}
		if before != nil {
			t.complete(before)
		}
		before = g
	}
}

// copyLayers dumps todo shard by shard, in the order in which they are submitted. Slots are held at the client's
// pleasure, so they are counted in layerSlots, all of a chunk at once, before the first is taken.
func (t *DumpTask) copyLayers() {
	for len(t.sc.todo) > 0 {
		want := int64(min(len(t.sc.todo), t.s.chunk))
		wait, cancel := t.s.waitCtx(t.ctx)
		err := t.s.layerSlots.Acquire(wait, want)
		cancel()
		if err != nil {
			t.failAll(fmt.Errorf("other layerwise dumps hold all %d slots that such may: %w: %w", t.s.layers, errdefs.ErrBusy, err))
			return
		}
		g := t.reserveGroup(int(want), true)
		if g != nil {
			t.copyChunk(g)
		}
		t.s.layerSlots.Release(want)
	}
}

// copyChunk copies every shard of g's blocks as it is submitted.
func (t *DumpTask) copyChunk(g *group) {
	for k := range t.s.shards {
		sub, err := t.arrival(k)
		if err == nil {
			err = g.broken()
		}
		if err != nil {
			g.fail(err)
			break
		}
		t.submit(g, k, t.pages.Shards[sub.shard])
		if g.err != nil {
			break
		}
	}
	t.complete(g)
}

// broken returns the error of a ticket that has failed already, so that nobody waits for more shards in vain.
func (g *group) broken() error {
	for _, tk := range g.tickets {
		if err := tk.Err(); err != nil {
			return err
		}
	}
	return nil
}

// arrival returns the k-th submission, waiting for it and for what it has to come after.
func (t *DumpTask) arrival(k int) (submission, error) {
	if k == len(t.arrivals) {
		idle := t.s.clock.NewTimer(t.s.cfg.LeaseMax)
		defer idle.Stop()
		select {
		case sub := <-t.shardCh:
			t.arrivals = append(t.arrivals, sub)
		default:
			select {
			case sub := <-t.shardCh:
				t.arrivals = append(t.arrivals, sub)
			case <-t.ctx.Done():
				return submission{}, context.Cause(t.ctx)
			case <-t.s.closing:
				return submission{}, fmt.Errorf("store is closing, shard %d of %d was not submitted: %w", k+1, t.s.shards, errdefs.ErrClosed)
			case <-idle.Chan():
				return submission{}, fmt.Errorf("shard %d of %d was not submitted within %v: %w", k+1, t.s.shards, t.s.cfg.LeaseMax, errdefs.ErrExpired)
			}
		}
	}
	sub := &t.arrivals[k]
	if !sub.met {
		if err := t.met(sub.after); err != nil {
			return submission{}, err
		}
		sub.met = true
	}
	return *sub, nil
}

// reserveGroup takes slots for up to n blocks of todo. With wait it waits for the first slot, the task holding none;
// further ones are taken only if they are free. Blocks that need no copy, or that another is filling, are set aside. It
// returns nil where no block was left to copy, or no slot was to be had.
func (t *DumpTask) reserveGroup(n int, wait bool) *group {
	sc := t.sc
	g := sc.group(t.s.shards)
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

// submit copies planes of g's pages to its slots by the group's n-th batch.
func (t *DumpTask) submit(g *group, n int, planes []mem.Plane) {
	tk, err := t.s.dumps.submit(t.ctx, g.batch(n, mem.ToSlots, planes, t.s.slots))
	if err != nil {
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
	for _, i := range g.refs {
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
		tk := g.oldest()
		select {
		case <-tk.Done():
			g.landed++
			t.travelled(&t.s.dumps, &t.s.count.dump, tk)
			if err := tk.Err(); err != nil {
				g.fail(err)
			}
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

// work runs a job of the task in a pool.
func (t *DumpTask) work(kind jobKind, i int32) {
	if kind == jobWrite {
		t.write(i)
		return
	}
	it := &t.sc.items[i]
	fill := it.fill
	it.fill = nil
	err := t.s.cfg.Format.Seal(t.s.imageOf(fill.Extent()).Bytes(), t.sc.refs[i].Key)
	if err != nil {
		fill.Abort(err)
	} else {
		it.slot, err = t.s.publish(fill)
	}
	t.sc.results <- result{i, err}
}

// persist hands a Ready block, pinned, to the writers; without tiers below it is durable already.
func (t *DumpTask) persist(i int32, slot tier.Slot) {
	if len(t.s.next) == 0 {
		slot.Release()
		t.one(i, nil)
		return
	}
	t.sc.items[i].slot = slot
	t.s.writers.push(job{t, i})
}

// write stores block i in every tier below.
func (t *DumpTask) write(i int32) {
	it, key := &t.sc.items[i], t.sc.refs[i].Key
	slot := it.slot
	it.slot = nil
	var errs []error
	for _, tr := range t.s.next {
		err := context.Cause(t.ctx)
		if err == nil {
			err = tr.Put(t.ctx, key, t.s.imageOf(slot.Extent()))
		}
		if err == nil {
			continue
		}
		if bad(err) {
			// The tier has checked the image before it wrote any of it, so the copy at fault is the cache's.
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
			if t.layers {
				t.copyLayers()
			} else {
				t.copyBlocks()
			}
		default:
			t.fail(i, err)
		}
	}
}
