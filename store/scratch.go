package store

import (
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier"
)

// scratch is what a task needs while it runs. It is pooled, so that a task allocates nothing for each extent.
type scratch struct {
	refs    []Ref   // the task's own copy of the caller's
	items   []item  // one a ref
	todo    []int32 // blocks not yet looked at
	reads   []int32 // blocks of a load to be read from below
	others  []int32 // blocks that somebody else is filling
	ready   []int32 // blocks of a load whose slots may be copied
	planes  []mem.Plane
	keys    []block.Key
	states  []tier.State
	durable []bool
	results chan result // as large as the jobs that a task has out at a time
	groups  []*group    // free ones
	pages   bitset
}

// item is what a task knows of one ref.
type item struct {
	slot  tier.Slot // pinned while not nil
	fill  tier.Fill // not ended while not nil
	cause error     // an earlier failure that may be mended
	from  int8      // the pipeline's tier that the block was read from
	tries uint8
	skip  bool // the block was there without the dump's doing
}

// result is what a job found.
type result struct {
	i   int32
	err error
}

func newScratch(s *Store) *scratch {
	return &scratch{results: make(chan result, max(windowBlocks+windowReads, s.group))}
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
	for i := range refs {
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
	sc.planes = sc.planes[:0]
	for _, planes := range p.Shards {
		sc.planes = append(sc.planes, planes...)
	}
}

// group is some blocks that are copied together: by one batch, or by one batch a shard.
type group struct {
	refs    []int32
	pairs   []mem.PageSlot
	pages   []mem.PageGroup
	paged   []mem.Paged
	batches []mem.Batch
	tickets []*stream.Ticket
	landed  int   // tickets that have resolved
	err     error // the first failure
	early   bool  // the fills went to quarantine before the tickets resolved
}

// group returns an empty group with room for n batches.
func (sc *scratch) group(n int) *group {
	var g *group
	if k := len(sc.groups); k > 0 {
		g, sc.groups = sc.groups[k-1], sc.groups[:k-1]
	} else {
		g = &group{}
	}
	if cap(g.batches) < n {
		g.pages, g.paged, g.batches = make([]mem.PageGroup, n), make([]mem.Paged, n), make([]mem.Batch, n)
		g.tickets = make([]*stream.Ticket, 0, n)
	}
	g.refs, g.pairs, g.tickets = g.refs[:0], g.pairs[:0], g.tickets[:0]
	g.landed, g.err, g.early = 0, nil, false
	return g
}

// free gives g back; all its tickets have resolved.
func (sc *scratch) free(g *group) {
	clear(g.tickets)
	clear(g.pages[:cap(g.pages)])
	sc.groups = append(sc.groups, g)
}

func (g *group) add(i int32, page, slot uint32) {
	g.refs = append(g.refs, i)
	g.pairs = append(g.pairs, mem.PageSlot{Page: page, Slot: slot})
}

// batch makes the n-th batch of the group.
func (g *group) batch(n int, dir mem.Direction, planes []mem.Plane, slots mem.Slots) *mem.Batch {
	g.pages = g.pages[:cap(g.pages)]
	g.paged, g.batches = g.paged[:cap(g.paged)], g.batches[:cap(g.batches)]
	g.pages[n] = mem.PageGroup{Planes: planes, Slots: slots, Pairs: g.pairs}
	g.paged[n] = mem.Paged{Dir: dir, Groups: g.pages[n : n+1 : n+1]}
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
