package store

import (
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// wholeParts is how many times as long parts are where nobody waits for a layer. headParts is how many are copied at least while other
// blocks are looked at: what fewer gain is lost again beside a model, where each further batch waits for multiprocessors.
const (
	wholeParts = 4
	headParts  = 4
)

// flush submits what is ready, unless enough is in the stream already or more is about to be ready.
func (t *LoadTask) flush() {
	for len(t.sc.ready) > 0 && t.flying < ahead && len(t.cohorts) < 2*ahead {
		n := min(len(t.sc.ready), t.s.most)
		if t.layers {
			n = t.alike(t.sc.items[t.sc.ready[0]].first) // all of them, so that no block's first shard is behind another's last
		}
		if t.checking > 0 && (t.layers || n < t.s.most) {
			return
		}
		t.submit(n)
	}
}

// alike moves the ready blocks that want the shards from first on to the front, and counts them. Those that are copied again want only
// what nobody has been told is there.
func (t *LoadTask) alike(first int32) int {
	ready, items := t.sc.ready, t.sc.items
	n := 0
	for k := range ready {
		if items[ready[k]].first == first {
			ready[n], ready[k] = ready[k], ready[n]
			n++
		}
	}
	return n
}

// submit has the first n blocks that are ready copied block by block, by one batch, or layer by layer.
func (t *LoadTask) submit(n int) {
	g, first := t.sc.cohort(t.s), t.sc.items[t.sc.ready[0]].first
	t.join(g, n)
	if t.sums {
		g.ask(t.s, len(t.sc.todo))
	}
	if t.layers {
		g.next = t.head(g, first)
		g.headed = len(g.flights)
		t.stride(g)
	} else {
		g.planWhole(t.s, wholeParts*t.s.cfg.PartBytes)
		t.launch(g, false)
	}
	t.cohorts = append(t.cohorts, g)
	if g.err != nil {
		t.advance()
	}
}

// head has the first shard that the blocks of g want copied ahead while there are others that were not looked at, which join g; so that
// it is there early, and yet before what follows it of any block. It returns the shard that is next.
func (t *LoadTask) head(g *cohort, first int32) int {
	if len(t.sc.todo) == 0 || !t.unchecked() {
		return int(first)
	}
	w := t.s.where[first]
	plan := func() {
		if planned, all := g.planned(), len(g.members[w.group]); planned < all {
			g.plan(t.s, w.group, span{w.shard, w.shard + 1}, span{planned, all})
		}
	}
	awaited := t.follows(g)
	for plan(); len(t.sc.todo) > 0 && g.err == nil; plan() {
		t.launch(g, awaited)
		t.scan(g.n)
		t.join(g, t.alike(first))
	}
	return int(first) + 1
}

// join adds the first n blocks that are ready to g.
func (t *LoadTask) join(g *cohort, n int) {
	for _, i := range t.sc.ready[:n] {
		it := &t.sc.items[i]
		// What the CPU has verified may have checksums of another kind.
		it.older = it.checked && it.slot.Sums() == nil
		g.add(i, it.group, t.sc.refs[i].Page, it.slot.Index())
	}
	t.sc.ready = append(t.sc.ready[:0], t.sc.ready[n:]...)
}

// launch submits what was planned of g since the last time, unless that failed. A stream may stand still until it is there.
func (t *LoadTask) launch(g *cohort, awaited bool) {
	if g.err != nil || len(g.parts) == g.sent() {
		return
	}
	f := g.fly(t.s, t.sc, mem.ToPages, t.sums)
	f.batch.Awaited = awaited
	g.fail(g.launch(t.ctx, t.s.clock.Now(), t.s.loads, f))
	if g.err != nil {
		return
	}
	if len(g.flights) == 1 {
		t.flying++
	}
	for i := range g.all {
		t.sc.items[i].touched = true
	}
}

// advance takes note of what has landed and of what has been proved, and of what never will.
func (t *LoadTask) advance() {
	for n := 0; n < len(t.cohorts); {
		g := t.cohorts[n]
		if !g.quiet() {
			landed := g.news(&t.task, t.s.loads, &t.s.count.load)
			for k := landed.from; k < landed.to; k++ {
				t.check(g, k)
				t.proved(g, k+1)
			}
			t.stride(g)
			if g.quiet() {
				t.flying--
			}
		}
		t.proved(g, g.landed)
		if !g.quiet() || g.proved < g.landed {
			n++
			continue
		}
		t.cohorts = slices.Delete(t.cohorts, n, n+1)
		for k := g.proved; k < len(g.parts); k++ {
			t.settle(g, k)
		}
		t.doubt(g)
		t.sc.free(g)
	}
}

// proved reports what g's parts before end have brought, which have been checked or are being checked, as far as they have been proved.
func (t *LoadTask) proved(g *cohort, end int) {
	for n := g.prove(end); n >= 0; n = g.prove(end) {
		t.arrive(g, n)
		t.settle(g, n)
	}
}

// check verifies what g's n-th part has brought to pages: by its sums, or else by jobs that verify the slots.
func (t *LoadTask) check(g *cohort, n int) {
	p := g.parts[n]
	switch {
	case p.summed && t.sums:
		t.compare(g, n)
	case t.sums || t.s.cfg.Verify == VerifyAlways:
		g.hand(t.s, t.sc, t, n)
	}
}

// compare verifies the blocks of g's n-th part by the sums that came with it, block by block and shard by shard.
func (t *LoadTask) compare(g *cohort, n int) {
	p := g.parts[n]
	t.recall(g, p.group, p.blocks.to)
	leaves, shards, counts := g.sums[p.sums:], len(t.s.layers[p.group]), (*t.s.leaves)[p.group][p.shards.from:p.shards.to]
	for k, i := range g.of(p) {
		wanted := g.wanted[p.group][(p.blocks.from+k)*shards:]
		if !same(leaves, counts, wanted[p.shards.from:p.shards.to]) {
			err := t.verifyBy(p, i, func(shard int) uint64 { return block.FoldLeaves(g.leavesOf(t.s, p, k, shard)) })
			if err != nil {
				g.wrongs = append(g.wrongs, wrong{int(i), n, err})
			}
		}
		leaves = leaves[p.leaves:]
	}
}

// same says whether the leaves of a block's shards make the checksums that are wanted.
func same(leaves []uint64, counts []leafCount, wanted []uint64) bool {
	for k, want := range wanted {
		n := counts[k].n
		if block.FoldLeaves(leaves[:n]) != want {
			return false
		}
		leaves = leaves[n:]
	}
	return true
}

// recall gathers the checksums of g's blocks of a page group, up to that place, in the order in which they are compared: zeros for one that
// has none, or that has its result already.
func (t *LoadTask) recall(g *cohort, group, to int) {
	shards, wanted := len(t.s.layers[group]), g.wanted[group]
	for at := len(wanted); at < to*shards; at += shards {
		wanted = slices.Grow(wanted, shards)[:at+shards]
		n := 0
		if slot := t.sc.items[g.members[group][at/shards]].slot; slot != nil {
			n = copy(wanted[at:], slot.Sums())
		}
		clear(wanted[at+n:])
	}
	g.wanted[group] = wanted
}

// handle verifies slots by the CPU, as far as the part has copied them.
func (t *LoadTask) handle(sh *share) {
	p := sh.p
	for _, i := range sh.blocks() {
		it := &t.sc.items[i]
		if it.checked && t.s.cfg.Verify != VerifyAlways { // which trusts no check that was made before the copy
			continue
		}
		image := t.s.imageOf(it.slot.Extent(), it.group).Bytes()
		if err := t.verifyBy(p, i, func(k int) uint64 { return t.s.formats[it.group].SumShard(image, k) }); err != nil {
			sh.wrong(i, err)
		}
	}
}

// verifyBy compares the checksums of a part's shards of block i with those that the cache has kept.
func (t *LoadTask) verifyBy(p *part, i int32, sum func(shard int) uint64) error {
	it := &t.sc.items[i]
	if it.older {
		return nil
	}
	sums := it.slot.Sums()
	if len(sums) < p.shards.to {
		return fmt.Errorf("%d checksums for the %d shards of block %s: %w", len(sums), p.shards.to, t.sc.refs[i].Key, errdefs.ErrCorrupt)
	}
	for k := p.shards.from; k < p.shards.to; k++ {
		if got := sum(k); got != sums[k] {
			return fmt.Errorf("verify block %s: checksum of shard %d is %016x, that of the block %016x: %w",
				t.sc.refs[i].Key, k, got, sums[k], errdefs.ErrCorrupt)
		}
	}
	return nil
}

// arrive reports the shards that g's n-th part has brought, which has been proved.
func (t *LoadTask) arrive(g *cohort, n int) {
	if !t.layers {
		return
	}
	p := g.parts[n]
	right := p.blocks.to - p.blocks.from - g.wrongBy(n)
	for k := p.shards.from; k < p.shards.to && right > 0; k++ {
		t.arrived(t.s.layers[p.group][k], right)
	}
}

// settle gives the blocks of g's n-th part their results, but for those whose copy was wrong, if it has the last of their shards; where the
// part has not been proved, it never will be.
func (t *LoadTask) settle(g *cohort, n int) {
	p, sc := g.parts[n], t.sc
	if p.shards.to < len(t.s.layers[p.group]) {
		return
	}
	var of verified
	sc.slots = sc.slots[:0]
	for k, i := range g.of(p) {
		it := &sc.items[i]
		if g.firstWrong(i) != nil {
			continue // until nothing is copied: see doubt
		}
		if n >= g.proved {
			t.from(g, it, g.missing(p.group, p.blocks.from+k))
			t.failed(i, g.err)
			continue
		}
		of.count(t, it, !g.bare || g.summed(p.group, p.blocks.from+k))
		t.left--
		if t.prove(i) != nil { // the page has the block all the same
			t.drop(it)
			continue
		}
		sc.slots = append(sc.slots, it.slot)
		it.slot = nil
	}
	of.add(t, t.s.formats[p.group].Layout.ImageBytes())
	t.s.cache.ReleaseSlots(sc.slots)
	t.open -= len(sc.slots)
	clear(sc.slots)
}

// doubt gives the blocks of g whose copy was wrong another chance: their pages are written no more.
func (t *LoadTask) doubt(g *cohort) {
	for k := range g.wrongs {
		w := &g.wrongs[k]
		if i := int32(w.i); g.firstWrong(i) == w {
			t.from(g, &t.sc.items[i], w.part)
			t.suspect(i, w.err)
		}
	}
}

// missing returns the first part that was to copy some of a block and has not been proved, or -1.
func (g *cohort) missing(group, place int) int {
	for n := g.proved; n < len(g.parts); n++ {
		if g.parts[n].has(group, place) {
			return n
		}
	}
	return -1
}

func (p *part) has(group, place int) bool {
	return p.group == group && place >= p.blocks.from && place < p.blocks.to
}

// from notes the first shard of a block that is not there: that of g's n-th part.
func (t *LoadTask) from(g *cohort, it *item, n int) {
	if t.layers {
		it.first = int32(t.s.layers[it.group][g.parts[n].shards.from])
	}
}

// summed says whether each part that has copied some of a block came with sums.
func (g *cohort) summed(group, place int) bool {
	for n := range g.parts {
		if p := g.parts[n]; !p.summed && p.has(group, place) {
			return false
		}
	}
	return true
}

// verified counts blocks that are on their pages, by where they were and by who has verified them.
type verified struct{ cached, below, onWay, byCPU int64 }

// count counts a block, whose sums may have come with its copy.
func (v *verified) count(t *LoadTask, it *item, summed bool) {
	if it.from == 0 {
		v.cached++
	} else {
		v.below++
		t.s.count.hits[it.from].Add(1)
	}
	onWay := summed && t.sums && !it.older
	if onWay {
		v.onWay++
	}
	if p := t.s.cfg.Verify; p == VerifyAlways || !onWay && (p != VerifyFill || it.from != 0) {
		v.byCPU++
	}
}

// add adds to what t and its store count; the blocks' images are so long.
func (v *verified) add(t *LoadTask, image int64) {
	t.memory += v.cached * image
	t.files += v.below * image
	c := &t.s.count
	c.hits[0].Add(v.cached)
	c.verifiedOnWay.Add(v.onWay)
	c.verifiedByCPU.Add(v.byCPU)
}
