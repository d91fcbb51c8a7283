package store

import (
	"slices"

	"github.com/kvlane/kvlane/mem"
)

// flush submits what is ready, unless enough is in the stream already or more is about to be ready.
func (t *LoadTask) flush() {
	for len(t.sc.ready) > 0 && len(t.flying) < ahead && len(t.proving) < ahead {
		n := min(len(t.sc.ready), t.s.most)
		if t.layers {
			n = t.alike() // one batch a shard for all of them, so that the first shard is not behind the last
		}
		if t.checking > 0 && (t.layers || n < t.s.most) {
			return
		}
		t.submit(t.sc.ready[:n])
		t.sc.ready = append(t.sc.ready[:0], t.sc.ready[n:]...)
	}
}

// alike moves the ready blocks that want the same shards as the first of them to the front, and counts them. Those that
// are copied again want only what nobody has been told is there.
func (t *LoadTask) alike() int {
	ready, items := t.sc.ready, t.sc.items
	n := 1
	for k := 1; k < len(ready); k++ {
		if items[ready[k]].first == items[ready[0]].first {
			ready[n], ready[k] = ready[k], ready[n]
			n++
		}
	}
	return n
}

func (t *LoadTask) submit(blocks []int32) {
	g := t.sc.cohort(t.s, int(t.sc.items[blocks[0]].first), t.layers)
	for _, i := range blocks {
		it := &t.sc.items[i]
		g.add(i, it.group, t.sc.refs[i].Page, it.slot.Index())
	}
	g.plan(t.s)
	if t.sums {
		g.askSums(t.s)
	}
	for n := range g.shards {
		tk, err := t.s.loads.submit(t.ctx, g.batch(n, mem.ToPages, t.s, t.sc))
		if err != nil {
			g.fail(err)
			break
		}
		g.tickets = append(g.tickets, tk)
	}
	for _, i := range blocks {
		it := &t.sc.items[i]
		it.touched = it.touched || len(g.tickets) > 0
	}
	t.flying = append(t.flying, g)
	if g.quiet() {
		t.advance()
	}
}

// land takes note of the oldest ticket.
func (t *LoadTask) land() {
	g := t.flying[0]
	tk := g.oldest()
	n := g.landed
	g.landed++
	t.travelled(&t.s.loads, &t.s.count.load, tk)
	if err := tk.Err(); err != nil {
		g.fail(err)
	} else if t.sums || t.s.cfg.Verify == VerifyAlways {
		g.summed[n] = t.sums && tk.Completion().Summed
		t.check(g, n)
	}
	t.advance()
}

// advance takes note of what has been proved, and settles groups of which all has.
func (t *LoadTask) advance() {
	for len(t.flying) > 0 && t.flying[0].quiet() {
		t.proving = append(t.proving, t.flying[0])
		t.flying = slices.Delete(t.flying, 0, 1)
	}
	for n := 0; n < len(t.proving); {
		g := t.proving[n]
		t.prove(g)
		if g.proved < g.landed {
			n++
			continue
		}
		t.proving = slices.Delete(t.proving, n, n+1)
		t.settle(g)
	}
	if len(t.flying) > 0 {
		t.prove(t.flying[0])
	}
}

// prove takes note of g's batches whose checks have been made, in their order: a shard is reported only after those before.
func (t *LoadTask) prove(g *cohort) {
	for g.proved < g.landed && g.pending[g.proved].Load() == 0 {
		n := g.proved
		g.proved++
		g.collect(n)
		if !t.layers || g.tickets[n].Err() != nil || g.good < n {
			continue
		}
		g.good++
		k := g.shards[n]
		if right := len(g.pairs[t.s.where[k].group]) - t.wrongUpTo(g, n); right > 0 {
			t.arrived(k, right)
		}
	}
}

// settle gives g's blocks their results; those whose copy was wrong have another chance.
func (t *LoadTask) settle(g *cohort) {
	for j, i := range g.refs {
		it := &t.sc.items[i]
		w := g.firstWrong(j)
		switch {
		case w != nil && (g.err == nil || w.batch < g.good): // of what came before the failure, if there was one
			it.first = int32(g.from(t.s, w.batch))
			t.suspect(i, w.err)
		case g.err == nil:
			t.verified(g, it)
			from := it.from
			t.drop(it)
			t.left--
			t.s.count.hits[from].Add(1)
		default:
			it.first = int32(g.from(t.s, g.good))
			t.failed(i, g.err)
		}
	}
	t.sc.free(g)
}

// verified counts a block of g that is on its page by who has verified it.
func (t *LoadTask) verified(g *cohort, it *item) {
	onWay := t.sums && !it.older
	for n := range g.tickets {
		onWay = onWay && (g.summed[n] || !t.copies(g, n, it))
	}
	if onWay {
		t.s.count.verifiedOnWay.Add(1)
	}
	if p := t.s.cfg.Verify; p == VerifyAlways || !onWay && (p != VerifyFill || it.from != 0) {
		t.s.count.verifiedByCPU.Add(1)
	}
}
