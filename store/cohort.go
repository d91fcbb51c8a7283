package store

import (
	"slices"
	"sync/atomic"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// all is in the place of a shard where a batch copies every shard of its blocks.
const all = -1

// cohort is some blocks that are copied together: by one batch, or by one batch a shard. A batch has a page group of mem for each
// page group that it has blocks of.
type cohort struct {
	refs    []int32
	place   []int32          // of each block among the pairs of its page group
	pairs   [][]mem.PageSlot // by page group
	shards  []int            // by batch: the shard of the task that it copies, or all
	pages   []mem.PageGroup  // of the batches, one after another
	paged   []mem.Paged
	batches []mem.Batch
	tickets []*stream.Ticket
	layers  bool  // a batch a shard
	first   int   // the first shard of the task that is copied
	landed  int   // tickets that have resolved
	err     error // the first failure
	early   bool  // the fills went to quarantine before the tickets resolved

	// What streams were asked to sum: see askSums.
	leaves *leafTable // nil: nothing
	sums   []uint64
	sumAt  []int  // sums before those of each page group, or, with a batch a shard, of each shard from the first on
	summed []bool // by batch, or by shard for a dump

	// A load's checks of what it has copied: see proof.go.
	proofs  []proof
	pending []atomic.Int32 // by batch: proofs not yet made
	proved  int            // batches whose checks have been taken note of
	good    int            // batches of which blocks that passed their checks have been reported
	wrongs  []wrong
}

// cohort returns an empty cohort with room for a batch for each of the task's shards from first on, or for one of all.
func (sc *scratch) cohort(s *Store, first int, layers bool) *cohort {
	var g *cohort
	if k := len(sc.cohorts); k > 0 {
		g, sc.cohorts = sc.cohorts[k-1], sc.cohorts[:k-1]
	} else {
		g = &cohort{pairs: make([][]mem.PageSlot, len(s.layers))}
	}
	n := 1
	if layers {
		n = s.shards - first
	}
	if len(g.batches) < n {
		g.pages, g.paged, g.batches = make([]mem.PageGroup, 0, max(n, len(s.layers))), make([]mem.Paged, n), make([]mem.Batch, n)
		g.shards, g.tickets = make([]int, 0, n), make([]*stream.Ticket, 0, n)
		g.summed, g.pending = make([]bool, n), make([]atomic.Int32, n)
	}
	g.refs, g.place, g.tickets, g.shards, g.pages = g.refs[:0], g.place[:0], g.tickets[:0], g.shards[:0], g.pages[:0]
	for i := range g.pairs {
		g.pairs[i] = g.pairs[i][:0]
	}
	g.landed, g.err, g.early = 0, nil, false
	g.first, g.layers = first, layers
	g.leaves, g.proved, g.good, g.wrongs = nil, 0, 0, g.wrongs[:0]
	clear(g.summed)
	return g
}

// free gives g back; all its tickets have resolved, and nobody works on its proofs.
func (sc *scratch) free(g *cohort) {
	clear(g.tickets)
	clear(g.pages[:cap(g.pages)])
	clear(g.proofs)
	clear(g.wrongs)
	sc.cohorts = append(sc.cohorts, g)
}

func (g *cohort) add(i int32, group uint8, page, slot uint32) {
	g.refs = append(g.refs, i)
	g.place = append(g.place, int32(len(g.pairs[group])))
	g.pairs[group] = append(g.pairs[group], mem.PageSlot{Page: page, Slot: slot})
}

// plan decides which batches there will be. A shard that none of the blocks has needs none.
func (g *cohort) plan(s *Store) {
	if !g.layers {
		g.shards = append(g.shards, all)
		return
	}
	for k := g.first; k < s.shards; k++ {
		if len(g.pairs[s.where[k].group]) > 0 {
			g.shards = append(g.shards, k)
		}
	}
}

// from returns the first shard of the task that the n-th batch and those after it copy.
func (g *cohort) from(s *Store, n int) int {
	switch {
	case !g.layers:
		return 0
	case n < len(g.shards):
		return g.shards[n]
	}
	return s.shards
}

// batch makes the n-th batch, which copies g.shards[n].
func (g *cohort) batch(n int, dir mem.Direction, s *Store, sc *scratch) *mem.Batch {
	shard, start := g.shards[n], len(g.pages)
	add := func(planes []mem.Plane, pairs []mem.PageSlot) {
		if len(pairs) > 0 {
			g.pages = append(g.pages, mem.PageGroup{Planes: planes, Slots: s.slots, Pairs: pairs})
		}
	}
	if shard == all {
		for i := range g.pairs {
			add(sc.groupPlanes(i), g.pairs[i])
		}
	} else {
		add(sc.shardPlanes(shard), g.pairs[s.where[shard].group])
	}
	g.paged[n] = mem.Paged{Dir: dir, Groups: g.pages[start:len(g.pages):len(g.pages)], Sums: g.sumsOf(shard)}
	g.batches[n] = mem.Batch{Paged: &g.paged[n]}
	return &g.batches[n]
}

// oldest returns the first ticket that has not been taken note of.
func (g *cohort) oldest() *stream.Ticket { return g.tickets[g.landed] }

// quiet says whether every ticket has been taken note of.
func (g *cohort) quiet() bool { return g.landed == len(g.tickets) }

func (g *cohort) cancel() {
	for _, t := range g.tickets[g.landed:] {
		t.Cancel()
	}
}

func (g *cohort) fail(err error) {
	if g.err == nil {
		g.err = err
	}
}

// askSums makes room for the sums of every leaf of g's blocks, from the cohort's first shard on.
func (g *cohort) askSums(s *Store) {
	g.leaves, g.sumAt = s.leaves, append(g.sumAt[:0], 0)
	n := 0
	if g.layers {
		for _, w := range s.where[g.first:] {
			n += len(g.pairs[w.group]) * s.leaves.shard(w).n
			g.sumAt = append(g.sumAt, n)
		}
	} else {
		for i := range g.pairs {
			n += len(g.pairs[i]) * s.leaves.block(i)
			g.sumAt = append(g.sumAt, n)
		}
	}
	g.sums = slices.Grow(g.sums[:0], n)[:n]
}

// sumsOf returns the part of g's sums that a batch of this shard fills; nil where none were asked for.
func (g *cohort) sumsOf(shard int) []uint64 {
	switch {
	case g.leaves == nil:
		return nil
	case shard == all:
		return g.sums
	}
	return g.sums[g.sumAt[shard-g.first]:g.sumAt[shard-g.first+1]]
}

// leavesOf returns the sums of the leaves of a shard of g's block j. k is the task's number of that shard, and w where it lies.
func (g *cohort) leavesOf(j, k int, w where) []uint64 {
	l := g.leaves.shard(w)
	if g.layers {
		return g.sums[g.sumAt[k-g.first]+int(g.place[j])*l.n:][:l.n] // shard, block, leaf: a batch a shard
	}
	return g.sums[g.sumAt[w.group]+int(g.place[j])*g.leaves.block(w.group)+l.before:][:l.n] // page group, block, shard, leaf
}

// hasSums says whether the batch that copied the shard has filled its sums.
func (g *cohort) hasSums(shard int) bool {
	if g.layers {
		return g.summed[shard-g.first]
	}
	return g.summed[0]
}
