package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// issue begins what may be begun.
func (t *LoadTask) issue() {
	t.scan(0)
	t.read()
	t.flush()
}

// run has the task until it has resolved.
func (t *LoadTask) run() {
	t.comeAfter()
	stop := t.ctx.Done()
	for {
		if stop != nil && t.ctx.Err() != nil {
			stop = nil
			t.stop()
		}
		t.issue()
		if len(t.sc.todo) > 0 && t.flying < ahead && t.unchecked() {
			continue // the rest is looked at while the first is copied
		}
		jobs := t.checking + t.reading
		if jobs == 0 && len(t.cohorts) == 0 && len(t.sc.ready) == 0 {
			if len(t.sc.todo) == 0 && len(t.sc.reads) == 0 && !t.await() {
				break
			}
			continue
		}
		select {
		case r := <-t.sc.results:
			t.took(r)
			t.drain()
		case <-t.landing():
			t.advance()
		case <-t.sc.news:
			t.advance()
		case <-stop:
		}
	}
	t.finish()
}

// comeAfter waits for what the load comes after, which is no part of what it takes. In vain: all blocks fail.
func (t *LoadTask) comeAfter() {
	if len(t.after) == 0 {
		return
	}
	if err := t.meet(t.after); err != nil {
		for _, i := range t.sc.todo {
			t.failed(i, err)
		}
		t.sc.todo = t.sc.todo[:0]
	}
	t.after, t.begun = nil, t.s.clock.Now()
}

// landing is closed when the oldest ticket has resolved of which no note was taken.
func (t *LoadTask) landing() <-chan struct{} {
	for _, g := range t.cohorts {
		if c := g.oldest(); c != nil {
			return c
		}
	}
	return nil
}

// drain takes what results there are, so that they make one batch.
func (t *LoadTask) drain() {
	for {
		select {
		case r := <-t.sc.results:
			t.took(r)
		default:
			return
		}
	}
}

// scan opens blocks that are in the cache and sorts out the others. It never waits. have is how many blocks the cohort has that they are
// to join.
func (t *LoadTask) scan(have int) {
	sc := t.sc
	n := len(sc.todo)
	switch {
	case !t.unchecked():
		n = min(n, windowBlocks-t.open)
	case t.layers:
		if piece := min(max(have, t.s.piece), 4*t.s.piece); n >= 2*piece {
			n = piece // so that copying begins early, and goes on
		}
	case t.flying == 0:
		n = min(n, firstBlocks)
	}
	if n <= 0 {
		return
	}
	sc.slots, sc.states = slices.Grow(sc.slots[:0], n)[:n], slices.Grow(sc.states[:0], n)[:n]
	err := t.s.cache.OpenReady(t.ctx, sc.keysOf(sc.todo[:n]), sc.slots, sc.states)
	for k, i := range sc.todo[:n] {
		switch {
		case err != nil:
			t.failed(i, err)
		case sc.slots[k] != nil:
			t.opened(i, sc.slots[k])
		case sc.states[k] == tier.Filling:
			sc.others = append(sc.others, i)
		default:
			sc.reads = append(sc.reads, i)
		}
	}
	clear(sc.slots)
	sc.todo = append(sc.todo[:0], sc.todo[n:]...)
}

// unchecked says whether slots of the cache are copied without the CPU verifying them before: they are trusted, or their copies are
// verified.
func (t *LoadTask) unchecked() bool {
	return t.s.cfg.Verify == VerifyFill || t.sums && t.s.cfg.Verify == VerifyDevice
}

// opened takes a slot that was in the cache already.
func (t *LoadTask) opened(i int32, slot tier.Slot) {
	it := &t.sc.items[i]
	t.misread(i, it.cause)
	it.slot, it.from, it.checked = slot, 0, false
	t.open++
	if t.unchecked() && (t.s.cfg.Verify == VerifyFill || slot.Sums() != nil) {
		t.sc.ready = append(t.sc.ready, i)
		return
	}
	t.verify(i)
}

// toProve takes a slot whose block was read without being verified: that its copy is, or else the CPU does it.
func (t *LoadTask) toProve(i int32) {
	switch it := &t.sc.items[i]; {
	case t.stopped:
		t.failed(i, context.Cause(t.ctx))
	case it.slot.Sums() == nil:
		t.verify(i)
	default:
		it.checked = false
		t.sc.ready = append(t.sc.ready, i)
	}
}

// verify has the CPU verify the block's slot.
func (t *LoadTask) verify(i int32) {
	t.checking++
	t.s.checks.push(t, i)
}

// read asks the readers for blocks that are not in the cache.
func (t *LoadTask) read() {
	sc := t.sc
	n := min(len(sc.reads), windowReads-t.reading)
	for _, i := range sc.reads[:n] {
		t.reading++
		t.open++
		t.s.readers.push(t, i)
	}
	sc.reads = append(sc.reads[:0], sc.reads[n:]...)
}

// work runs a job of the task in a pool.
func (t *LoadTask) work(kind jobKind, i int32) {
	it := &t.sc.items[i]
	var err error
	if kind == jobCheck {
		err = t.s.formats[it.group].Verify(t.s.imageOf(it.slot.Extent(), it.group).Bytes(), t.sc.keys[i])
	} else {
		it.slot, it.from, err = t.s.fetch(t.ctx, t.sc.keys[i:i+1], fetching{wait: true, pinned: t.lease != nil, raw: t.room(i)})
	}
	t.sc.results <- result{kind, i, err}
}

// took acts on what a job found.
func (t *LoadTask) took(r result) {
	sc := t.sc
	it := &sc.items[r.i]
	if r.kind == jobCheck {
		t.checking--
		if r.err != nil {
			t.corrupt(r.i, r.err)
			return
		}
		err := t.prove(r.i)
		if it.wrong > 0 && !t.miscopied(r.i) {
			return
		}
		if err != nil {
			it.wrong++ // so that it is verified before it is in a slot
			t.drop(it)
			t.again(r.i, err)
			return
		}
	} else {
		t.reading--
		if r.err == nil && t.unproven(r.i) {
			t.toProve(r.i)
			return
		}
		if r.err == nil {
			t.misread(r.i, it.cause)
		}
	}
	it.checked = r.err == nil
	switch {
	case r.err == nil && t.stopped:
		t.failed(r.i, context.Cause(t.ctx))
	case r.err == nil:
		sc.ready = append(sc.ready, r.i)
	case isExists(r.err) && !t.stopped:
		t.open--
		sc.others = append(sc.others, r.i)
	default:
		t.open--
		t.failed(r.i, r.err)
	}
}

// corrupt drops a copy in a slot that failed its check and tries the tiers below. Whether a copy that came from there without having been
// verified is theirs or was read wrong, shows when they are asked again.
func (t *LoadTask) corrupt(i int32, err error) {
	it := &t.sc.items[i]
	it.misread = t.unproven(i)
	it.slot.Corrupt(err)
	t.drop(it)
	if !it.misread {
		t.s.count.corrupt.Add(1)
		t.s.cfg.Hooks.corrupt(t.s.cache.Name(), t.sc.refs[i].Key, err)
	}
	t.again(i, err)
}

// again has block i read anew, which holds no slot because of err, or gives it up.
func (t *LoadTask) again(i int32, err error) {
	it := &t.sc.items[i]
	if len(t.s.next) == 0 || t.stopped || it.wrong >= maxTries {
		t.misread(i, err)
		t.failed(i, err)
		return
	}
	it.cause = err
	t.s.count.refills.Add(1)
	t.sc.reads = append(t.sc.reads, i)
}

// suspect has the slot of a block verified whose copy failed its check: either the slot is wrong, or the copy was.
func (t *LoadTask) suspect(i int32, err error) {
	it := &t.sc.items[i]
	it.cause = err
	it.wrong++
	if t.stopped {
		t.failed(i, context.Cause(t.ctx))
		return
	}
	t.verify(i)
}

// miscopied deals with a block whose slot is right and whose copy was not. It says whether to copy it again.
func (t *LoadTask) miscopied(i int32) bool {
	it := &t.sc.items[i]
	t.s.count.badCopies.Add(1)
	t.s.cfg.Hooks.badCopy(t.sc.refs[i].Key, it.cause)
	if it.wrong < maxTries {
		return true
	}
	t.failed(i, fmt.Errorf("%d copies to the page were wrong, the %s has the block right: %w", it.wrong, t.s.cache.Name(), errdefs.ErrCorrupt))
	return false
}

// drop unpins the item's slot.
func (t *LoadTask) drop(it *item) {
	it.slot.Release()
	it.slot = nil
	t.open--
}

// await waits for one block that another is filling; the task holds no slot. False: there is none.
func (t *LoadTask) await() bool {
	sc := t.sc
	if len(sc.others) == 0 {
		return false
	}
	i := sc.others[0]
	slot, err := t.s.open(t.ctx, sc.refs[i].Key)
	it := &sc.items[i]
	// The rest has had as long to become ready: it is looked at anew, together.
	sc.todo = append(sc.todo, sc.others[1:]...)
	sc.others = sc.others[:0]
	switch {
	case err == nil:
		t.opened(i, slot)
	case notFound(err) && it.tries < t.s.tries && t.ctx.Err() == nil:
		if bad(err) { // the tier below is to set it aside
			it.cause = err
		}
		it.tries++
		t.s.count.retries.Add(1)
		sc.reads = append(sc.reads, i)
	default:
		t.failed(i, err)
	}
	return true
}

// stop acts on the end of the task's context: nothing more is issued, and what flies is asked to land soon.
func (t *LoadTask) stop() {
	t.stopped = true
	cause := context.Cause(t.ctx)
	sc := t.sc
	for _, list := range []*[]int32{&sc.todo, &sc.reads, &sc.others, &sc.ready} {
		for _, i := range *list {
			t.failed(i, cause)
		}
		*list = (*list)[:0]
	}
	for _, g := range t.cohorts {
		g.cancel()
	}
}

// failed gives block i its result.
func (t *LoadTask) failed(i int32, err error) {
	it := &t.sc.items[i]
	if it.slot != nil {
		t.drop(it)
	}
	if !bad(err) && !notFound(err) { // else that has been counted
		t.misread(i, it.cause)
	}
	if it.cause != nil {
		err = fmt.Errorf("%w; and then: %w", it.cause, err)
	}
	t.set(i, BlockError{Op: "load", Key: t.sc.refs[i].Key, Page: t.sc.refs[i].Page, Undefined: it.touched, Err: err})
	t.s.count.loadErrors.Add(1)
	if t.lease == nil && notFound(err) {
		t.s.count.misses.Add(1)
	}
	t.left--
	if t.layers {
		for _, k := range t.s.layers[it.group] {
			if k >= int(it.first) {
				t.arrived(k, 1)
			}
		}
	}
}

// arrived counts n blocks that no longer wait for the shard.
func (t *LoadTask) arrived(shard, n int) {
	if t.shardLeft[shard] -= n; t.shardLeft[shard] == 0 {
		t.reach()
	}
}

// distrust says that streams have gone on without the load, because of err: they may have read any of its pages before the block was there.
func (t *LoadTask) distrust(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.settled {
		t.late = err
	}
}

// failLate fails the blocks that have come, if they have come too late. All has landed.
func (t *LoadTask) failLate() {
	t.mu.Lock()
	late, errs := t.late, t.errs
	t.late, t.settled = nil, true
	t.mu.Unlock()
	if late == nil {
		return
	}
	for i, ref := range t.sc.refs {
		if errs == nil || errs[i] == nil {
			t.set(int32(i), BlockError{Op: "load", Key: ref.Key, Page: ref.Page, Undefined: true, Err: late})
			t.s.count.loadErrors.Add(1)
		}
	}
}

func (t *LoadTask) finish() {
	took := t.s.clock.Now().Sub(t.begun)
	t.s.count.loaded.observe(took)
	if t.memory+t.files > 0 {
		t.s.admission.Loaded(t.memory, t.files, took)
	}
	t.failLate()
	t.reached.pass(t.s.shards)
	if t.lease != nil {
		t.lease.End()
	}
	close(t.done)
	t.progress.end(t.joined())
	t.cancel(nil) // nobody waits for this, and what follows
	t.s.put(t.sc)
	t.sc = nil
	t.s.end(t.s.turns)
}
