package store

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier"
)

// scratch is what a task needs while it runs. It is pooled, so that a task allocates nothing for each extent.
type scratch struct {
	refs    []Ref       // the task's own copy of the caller's
	items   []item      // one a ref
	todo    []int32     // blocks not yet looked at
	reads   []int32     // blocks of a load to be read from below
	others  []int32     // blocks that somebody else is filling
	ready   []int32     // blocks of a load whose slots may be copied
	planes  []mem.Plane // of every shard, in the order of the shards and of their places in a slot
	planeAt []int       // planes before each shard, and before the end
	keys    []block.Key // one a ref
	ask     []block.Key // what the cache is asked for together, and its answers
	slots   []tier.Slot
	states  []tier.State
	kept    []bool        // by one tier
	durable []bool        // by all
	results chan result   // as large as the jobs that a task has out at a time
	proved  chan struct{} // has an element when proofs were made since it was looked at
	groups  []*group      // free ones
	pages   bitset
}

// item is what a task knows of one ref.
type item struct {
	slot  tier.Slot // pinned while not nil
	fill  tier.Fill // not ended while not nil
	cause error     // an earlier failure that may be mended
	group *group    // a dump: whose sums are the block's
	at    int32     // a dump: the block's place in group
	first int32     // a layerwise load: the first shard that is not yet on the page and verified
	from  int8      // the pipeline's tier that the block was read from
	tries uint8
	wrong uint8 // copies to the page that failed their check
	skip  bool  // the block was there without the dump's doing

	// Of a load.
	checked bool // the slot was verified by the CPU: by the task, or by the tier that the block was read from
	older   bool // its checksums cannot be compared with those of a copy
	touched bool // something may have been written to the page
}

// result is what a job found.
type result struct {
	kind jobKind
	i    int32
	err  error
}

func newScratch(s *Store) *scratch {
	return &scratch{results: make(chan result, max(windowBlocks+windowReads, s.group)), proved: make(chan struct{}, 1)}
}

// take prepares pooled scratch for refs, whose order todo keeps.
func (s *Store) take(refs []Ref) *scratch {
	sc, ok := s.scratch.Get().(*scratch)
	if !ok {
		sc = newScratch(s)
	}
	sc.refs = append(sc.refs[:0], refs...)
	if cap(sc.items) < len(refs) {
		sc.items = make([]item, len(refs))
	}
	sc.items = sc.items[:len(refs)]
	sc.keys = sc.keys[:0]
	for i := range refs {
		sc.keys = append(sc.keys, refs[i].Key)
		sc.todo = append(sc.todo, int32(i))
	}
	return sc
}

func (s *Store) put(sc *scratch) {
	clear(sc.items)
	clear(sc.planes)
	sc.todo, sc.reads, sc.others, sc.ready = sc.todo[:0], sc.reads[:0], sc.others[:0], sc.ready[:0]
	s.scratch.Put(sc)
}

// flatten puts the planes of every shard behind each other.
func (sc *scratch) flatten(p *Pages) {
	sc.planes, sc.planeAt = sc.planes[:0], append(sc.planeAt[:0], 0)
	for _, planes := range p.Shards {
		n := len(sc.planes)
		sc.planes = append(sc.planes, planes...)
		slices.SortFunc(sc.planes[n:], func(a, b mem.Plane) int { return cmp.Compare(a.SlotOff, b.SlotOff) })
		sc.planeAt = append(sc.planeAt, len(sc.planes))
	}
}

// planesOf returns the planes of a shard, or of all where shard is negative.
func (sc *scratch) planesOf(shard int) []mem.Plane {
	if shard < 0 {
		return sc.planes
	}
	return sc.planes[sc.planeAt[shard]:sc.planeAt[shard+1]]
}

// group is some blocks that are copied together: by one batch, or by one batch a shard.
type group struct {
	refs    []int32
	pairs   []mem.PageSlot
	pages   []mem.PageGroup
	paged   []mem.Paged
	batches []mem.Batch
	tickets []*stream.Ticket
	layers  bool  // a batch a shard
	first   int   // the shard that the first batch copies
	landed  int   // tickets that have resolved
	err     error // the first failure
	early   bool  // the fills went to quarantine before the tickets resolved

	// What streams were asked to sum: see askSums.
	leafAt []int // nil: nothing
	sums   []uint64
	summed []bool // by batch, or by shard for a dump

	// A load's checks of what it has copied: see proof.go.
	proofs  []proof
	pending []atomic.Int32 // by batch: proofs not yet made
	proved  int            // batches whose checks have been taken note of
	good    int            // batches of which blocks that passed their checks have been reported
	wrongs  []wrong
}

// group returns an empty group with room for n batches, one for each shard from first on, or one for all.
func (sc *scratch) group(n, first int, layers bool) *group {
	var g *group
	if k := len(sc.groups); k > 0 {
		g, sc.groups = sc.groups[k-1], sc.groups[:k-1]
	} else {
		g = &group{}
	}
	if cap(g.batches) < n {
		g.pages, g.paged, g.batches = make([]mem.PageGroup, n), make([]mem.Paged, n), make([]mem.Batch, n)
		g.tickets = make([]*stream.Ticket, 0, n)
		g.summed, g.pending = make([]bool, n), make([]atomic.Int32, n)
	}
	g.refs, g.pairs, g.tickets = g.refs[:0], g.pairs[:0], g.tickets[:0]
	g.landed, g.err, g.early = 0, nil, false
	g.first, g.layers = first, layers
	g.leafAt, g.proved, g.good, g.wrongs = nil, 0, 0, g.wrongs[:0]
	clear(g.summed)
	return g
}

// free gives g back; all its tickets have resolved, and nobody works on its proofs.
func (sc *scratch) free(g *group) {
	clear(g.tickets)
	clear(g.pages[:cap(g.pages)])
	clear(g.proofs)
	clear(g.wrongs)
	sc.groups = append(sc.groups, g)
}

func (g *group) add(i int32, page, slot uint32) {
	g.refs = append(g.refs, i)
	g.pairs = append(g.pairs, mem.PageSlot{Page: page, Slot: slot})
}

// batch makes the n-th batch of the group, which copies a shard, or all where shard is negative.
func (g *group) batch(n int, dir mem.Direction, shard int, sc *scratch, slots mem.Slots) *mem.Batch {
	g.pages = g.pages[:cap(g.pages)]
	g.paged, g.batches = g.paged[:cap(g.paged)], g.batches[:cap(g.batches)]
	g.pages[n] = mem.PageGroup{Planes: sc.planesOf(shard), Slots: slots, Pairs: g.pairs}
	g.paged[n] = mem.Paged{Dir: dir, Groups: g.pages[n : n+1 : n+1], Sums: g.sumsOf(shard)}
	g.batches[n] = mem.Batch{Paged: &g.paged[n]}
	return &g.batches[n]
}

// oldest returns the first ticket that has not been taken note of.
func (g *group) oldest() *stream.Ticket { return g.tickets[g.landed] }

// quiet says whether every ticket has been taken note of.
func (g *group) quiet() bool { return g.landed == len(g.tickets) }

func (g *group) cancel() {
	for _, t := range g.tickets[g.landed:] {
		t.Cancel()
	}
}

func (g *group) fail(err error) {
	if g.err == nil {
		g.err = err
	}
}
