package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier"
)

// dumpsAhead is how many cohorts of a dump hold slots at a time: one is copied while the next waits in the stream, and those before it
// are sealed.
const dumpsAhead = 4

// copyBlocks dumps todo with all shards at once, a cohort at a time: while some are copied, those before are sealed and published, and so is what
// was copied as it came.
func (t *DumpTask) copyBlocks() {
	n := min(firstBlocks, t.s.most) // so that copying begins early
	for {
		for len(t.sc.todo) > 0 && len(t.cohorts) < dumpsAhead {
			// Slots of other cohorts come free only by this goroutine's doing: it must not wait for others with those in hand.
			if !t.beginCohort(n, len(t.cohorts) == 0) {
				break
			}
			n = t.s.most
		}
		if len(t.cohorts) > 0 {
			t.progress()
		} else if len(t.sc.todo) == 0 {
			return
		}
	}
}

// beginCohort has up to n blocks of todo copied, and reports whether there are any: see reserveCohort.
func (t *DumpTask) beginCohort(n int, wait bool) bool {
	g := t.reserveCohort(n, wait)
	if g == nil {
		return false
	}
	g.planWhole(t.s, wholeParts*t.s.cfg.PartBytes)
	t.submit(g)
	t.cohorts = append(t.cohorts, g)
	return true
}

// reserveCohort takes slots for up to n blocks of todo. With wait it waits for the first slot, the task holding none;
// further ones are taken only if they are free. Blocks that need no copy, or that another is filling, are set aside. It
// returns nil where no block was left to copy, or no slot was to be had.
func (t *DumpTask) reserveCohort(n int, wait bool) *cohort {
	sc := t.sc
	g := sc.cohort(t.s)
	used := 0
	for _, i := range sc.todo {
		if g.n == n {
			break
		}
		if err := context.Cause(t.ctx); err != nil {
			t.fail(i, err)
			used++
			continue
		}
		first := wait && g.n == 0
		fill, err := t.s.reserveFor(t.ctx, sc.refs[i].Key, first)
		if err != nil && !first && isBusy(err) {
			break
		}
		used++
		switch {
		case err == nil:
			sc.items[i].fill = fill
			g.add(i, sc.items[i].group, sc.refs[i].Page, fill.Index())
		case isExists(err):
			t.existing(i)
		default:
			t.fail(i, err)
		}
	}
	sc.todo = append(sc.todo[:0], sc.todo[used:]...)
	if g.n == 0 {
		sc.free(g)
		return nil
	}
	if t.sums {
		g.ask(t.s, 0)
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

// submit has the parts of g copied that were planned last, after recorded work.
func (t *DumpTask) submit(g *cohort, after ...stream.Recorded) {
	ctx := t.ctx
	if len(after) > 0 { // the stream may have to wait before it can be told to wait
		bounded, cancel := t.s.waitFor(ctx, t.s.cfg.LeaseMax)
		defer cancel()
		ctx = bounded
	}
	err := g.launch(ctx, t.s.clock.Now(), t.s.dumps, g.fly(t.s, t.sc, mem.ToSlots, t.sums), after...)
	if err != nil && ctx.Err() != nil && t.ctx.Err() == nil {
		err = fmt.Errorf("the stream was not to be told to wait in %v: %w: %w", t.s.cfg.LeaseMax, errdefs.ErrExpired, err)
	}
	g.fail(err)
}

// progress waits until something has landed, or was sealed, and takes note of it. If the task is canceled meanwhile, the fills that are
// not being sealed are ended at once, so that nobody waits for them, and their slots go to quarantine until their cohort is quiet.
func (t *DumpTask) progress() {
	var landing, stop <-chan struct{}
	busy := false
	for _, g := range t.cohorts {
		busy = busy || !g.settled()
		if g.quiet() {
			continue
		}
		if landing == nil {
			landing = g.oldest()
		}
		if !g.early {
			stop = t.ctx.Done()
		}
	}
	if busy { // else one was not taken by the stream
		select {
		case <-landing:
		case <-t.sc.news:
		case <-stop:
			for _, g := range t.cohorts {
				t.abandon(g)
			}
		}
	}
	for n := 0; n < len(t.cohorts); {
		g := t.cohorts[n]
		t.take(g)
		if !g.settled() {
			n++
			continue
		}
		t.cohorts = slices.Delete(t.cohorts, n, n+1)
		t.end(g)
	}
}

// settled says whether nothing of the cohort is copied or sealed any more.
func (g *cohort) settled() bool { return g.quiet() && g.proved == g.landed }

// take takes note of what has landed of g, whose pages are read no more, and has it sealed; and of what has been sealed.
func (t *DumpTask) take(g *cohort) {
	landed := g.news(&t.task, t.s.dumps, &t.s.count.dump)
	if g.layered {
		landed = g.joined(context.Cause(t.ctx))
	} else if g.early { // what has been quarantined is not sealed
		g.landed, landed.to = landed.from, landed.from
	}
	for n := landed.from; n < landed.to; n++ {
		t.sourceFree(len(g.of(g.parts[n])))
		g.hand(t.s, t.sc, t, n)
	}
	for n := g.prove(g.landed); n >= 0; n = g.prove(g.landed) {
		t.sealed(g, n)
	}
}

// sealed hands the blocks of g's n-th part, which have been sealed, to those who write them down.
func (t *DumpTask) sealed(g *cohort, n int) {
	for _, i := range g.of(g.parts[n]) {
		if w := g.firstWrong(i); w != nil {
			t.one(i, w.err)
			continue
		}
		slot := t.sc.items[i].slot
		t.sc.items[i].slot = nil
		t.persist(i, slot)
	}
}

// joined returns the parts by which the blocks of a cohort are sealed that is copied shard by shard, once every shard has landed: one of each page
// group that copies nothing and stands for all of its blocks. Before that, and where stopped is why it is not to be sealed, there is nothing to do.
func (g *cohort) joined(stopped error) span {
	g.proved = g.landed
	if !g.quiet() {
		return span{}
	}
	if g.fail(stopped); g.err != nil {
		return span{}
	}
	first := len(g.parts)
	for group, members := range g.members {
		if len(members) > 0 {
			g.addPart(group, span{}, span{0, len(members)})
		}
	}
	g.proved, g.landed, g.layered = first, len(g.parts), false
	return span{first, g.landed}
}

// abandon stops g, and ends the fills of the blocks that are not being sealed.
func (t *DumpTask) abandon(g *cohort) {
	if g.early || g.quiet() {
		return
	}
	cause := context.Cause(t.ctx)
	g.fail(cause)
	g.cancel()
	g.early, g.calm = true, make(chan struct{})
	n := 0
	for i := range g.unsealed {
		t.sc.items[i].fill.Quarantine(cause, g.calm)
		n++
	}
	t.s.count.quarantined.Add(int64(n))
}

// end gives the blocks of g that are not sealed their result; nothing touches their slots any more.
func (t *DumpTask) end(g *cohort) {
	if g.calm != nil {
		close(g.calm)
	}
	for i := range g.unsealed {
		if !g.early {
			t.sc.items[i].fill.Abort(g.err)
		}
		t.sc.items[i].fill = nil
		t.fail(i, g.err)
	}
	t.sc.free(g)
}

// unsealed yields the blocks of the parts that nobody seals: all that have not landed, or all, as no shard of them is alone.
func (g *cohort) unsealed(yield func(i int32) bool) {
	if g.layered || g.landed == 0 { // also where nothing was planned
		g.all(yield)
		return
	}
	for n := g.landed; n < len(g.parts); n++ {
		for _, i := range g.of(g.parts[n]) {
			if !yield(i) {
				return
			}
		}
	}
}

// handle seals the blocks of a share and publishes them.
func (t *DumpTask) handle(sh *share) {
	p := sh.p
	sh.by = sh.g.byShard(sh.by, p, len(t.s.layers[p.group]))
	for k, i := range sh.blocks() {
		it := &t.sc.items[i]
		fill := it.fill
		it.fill = nil
		err := t.seal(sh.g, sh.by, p.blocks.from+sh.from+k, t.s.imageOf(fill.Extent(), it.group).Bytes(), t.sc.refs[i].Key)
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
		if err != nil {
			sh.wrong(i, err)
		}
	}
}

// byShard returns, in the memory of by, by which part each shard of p's blocks was copied: all by p itself, or, where p copies none, by
// those before it.
func (g *cohort) byShard(by []*part, p *part, shards int) []*part {
	by = slices.Grow(by[:0], shards)[:shards]
	for k := p.shards.from; k < p.shards.to; k++ {
		by[k] = p
	}
	for i := range g.parts {
		if q := g.parts[i]; p.shards.from == p.shards.to && q.group == p.group {
			for k := q.shards.from; k < q.shards.to; k++ {
				by[k] = q
			}
		}
	}
	return by
}

// seal completes the image of a block, at that place in its page group, with the checksums that came with its shards, by the parts that
// copied them; the CPU sums what came without, and, but under VerifyDevice, compares what came with the slot.
func (t *DumpTask) seal(g *cohort, by []*part, place int, image []byte, key block.Key) error {
	f := t.s.formats[by[0].group]
	if !t.sums {
		return f.Seal(image, key)
	}
	var few [256]uint64
	sums := few[:]
	if len(by) > len(few) {
		sums = make([]uint64, len(by))
	}
	sums = sums[:len(by)]
	for k, p := range by {
		if p.summed {
			sums[k] = block.FoldLeaves(g.leavesOf(t.s, p, place-p.blocks.from, k))
			if t.s.cfg.Verify == VerifyDevice {
				continue
			}
		}
		slot := f.SumShard(image, k)
		if p.summed && slot != sums[k] {
			return fmt.Errorf("shard %d did not reach the slot as it was read from the page: %w", k, errdefs.ErrCorrupt)
		}
		sums[k] = slot
	}
	return f.SealWith(image, key, sums)
}

// work writes a block to the tiers below.
func (t *DumpTask) work(_ jobKind, i int32) { t.s.write([]job{{w: t, i: i}}) }

// persist hands a Ready block, pinned, to the writers; without tiers below that can be written it is durable already.
func (t *DumpTask) persist(i int32, slot tier.Slot) {
	if len(t.s.durable) == 0 {
		slot.Release()
		t.one(i, nil)
		return
	}
	t.sc.items[i].slot = slot
	t.s.writers.push(t, i)
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
		case notFound(err) && it.tries < t.s.tries && t.ctx.Err() == nil:
			it.tries++
			t.s.count.retries.Add(1)
			sc.todo = append(sc.todo, i)
			t.copy()
		default:
			t.fail(i, err)
		}
	}
}
