package store

import "github.com/kvlane/kvlane/block"

// wrong is a block of a cohort whose copy by one of its batches failed its check.
type wrong struct {
	at, batch int
	err       error
}

// proof is a job: the slots of some of a cohort's blocks are verified by the CPU, as far as one batch has copied them. What it
// found belongs to the task's goroutine once the batch's count of pending proofs is zero.
type proof struct {
	t        *LoadTask
	g        *cohort
	batch    int
	from, to int // the blocks
	wrongs   []wrong
}

// check verifies what g's n-th batch, which went well, has brought to pages: by its sums, or else by jobs that verify the
// slots. Those jobs run while later batches are copied.
func (t *LoadTask) check(g *cohort, n int) {
	if g.summed[n] {
		for j, i := range g.refs {
			if !t.copies(g, n, &t.sc.items[i]) {
				continue
			}
			if err := t.compare(g, n, j); err != nil {
				g.wrongs = append(g.wrongs, wrong{j, n, err})
			}
		}
		return
	}
	parts := min(len(g.refs), t.s.cfg.Checkers)
	g.pending[n].Store(int32(parts))
	if need := len(g.tickets) * parts; len(g.proofs) < need {
		// Only ever before the cohort's first proof: the jobs hold pointers into the slice.
		g.proofs = make([]proof, need)
	}
	for k := range parts {
		p := &g.proofs[n*parts+k]
		*p = proof{t: t, g: g, batch: n, from: k * len(g.refs) / parts, to: (k + 1) * len(g.refs) / parts}
		t.s.checks.push(job{w: p})
	}
}

// copies says whether g's n-th batch copies a part of the block.
func (t *LoadTask) copies(g *cohort, n int, it *item) bool {
	k := g.shards[n]
	return k == all || t.s.where[k].group == int(it.group)
}

// shardsOf returns the shards that g's n-th batch copies of the block, of which it copies a part, by their number in the task.
func (t *LoadTask) shardsOf(g *cohort, n int, it *item) []int {
	if g.shards[n] == all {
		return t.s.layers[it.group]
	}
	return g.shards[n : n+1]
}

// compare verifies block j of g by the sums that came with the n-th batch.
func (t *LoadTask) compare(g *cohort, n, j int) error {
	it := &t.sc.items[g.refs[j]]
	h, err := t.s.formats[it.group].Verified(t.s.imageOf(it.slot.Extent(), it.group).Bytes())
	if err != nil {
		return err
	}
	// The header is in memory that may have changed since it was looked at, so it cannot excuse a block from this check.
	if it.older = h.SumAlgo != block.SumTree && it.checked; it.older {
		return nil
	}
	for _, k := range t.shardsOf(g, n, it) {
		w := t.s.where[k]
		if err := h.VerifyLeaves(w.shard, g.leavesOf(j, k, w)); err != nil {
			return err
		}
	}
	return nil
}

func (p *proof) work(jobKind, int32) {
	// After the count has gone down the cohort, and the task, may belong to somebody else.
	t, told := p.t, p.t.sc.proved
	for j := p.from; j < p.to; j++ {
		it := &t.sc.items[p.g.refs[j]]
		if it.checked && t.s.cfg.Verify != VerifyAlways { // which trusts no check that was made before the copy
			continue
		}
		if !t.copies(p.g, p.batch, it) {
			continue
		}
		image := t.s.imageOf(it.slot.Extent(), it.group).Bytes()
		for _, k := range t.shardsOf(p.g, p.batch, it) {
			if err := t.s.formats[it.group].VerifyShard(image, t.s.where[k].shard); err != nil {
				p.wrongs = append(p.wrongs, wrong{j, p.batch, err})
				break
			}
		}
	}
	p.g.pending[p.batch].Add(-1)
	select {
	case told <- struct{}{}:
	default:
	}
}

// collect takes what the proofs of the n-th batch have found.
func (g *cohort) collect(n int) {
	for k := range g.proofs {
		if p := &g.proofs[k]; p.g != nil && p.batch == n { // of another batch it may be at work
			g.wrongs = append(g.wrongs, p.wrongs...)
			p.wrongs = nil
		}
	}
}

// wrongUpTo counts those blocks that g's n-th batch copies a part of, and that it or a batch before it got wrong.
func (t *LoadTask) wrongUpTo(g *cohort, n int) int {
	count := 0
	for k := range g.wrongs {
		w := &g.wrongs[k]
		if w.batch <= n && g.firstWrong(w.at) == w && t.copies(g, n, &t.sc.items[g.refs[w.at]]) {
			count++
		}
	}
	return count
}

// firstWrong returns what is known of the first batch that got block j wrong, or nil.
func (g *cohort) firstWrong(j int) *wrong {
	var first *wrong
	for k := range g.wrongs {
		if w := &g.wrongs[k]; w.at == j && (first == nil || w.batch < first.batch) {
			first = w
		}
	}
	return first
}
