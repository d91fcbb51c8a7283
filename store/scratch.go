package store

import (
	"cmp"
	"slices"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/mem"
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
	planes  []mem.Plane // of every page group's shards, in the order of the shards and of their places in a slot
	shardAt []span      // by the task's shard: its planes
	keys    []block.Key // one a ref
	ask     []block.Key // what the cache is asked for together, and its answers
	slots   []tier.Slot
	states  []tier.State
	kept    []bool        // by one tier
	durable []bool        // by all
	results chan result   // as large as the jobs that a task has out at a time
	news    chan struct{} // has an element when something has landed, or was proved, since it was looked at
	cohorts []*cohort     // free ones
	flights []*flight     // free ones
	shards  []int         // of a layerwise dump, to be put in order
	counts  []int         // of a layerwise load: LoadTask.shardLeft
	pages   pageSet

	// Of blocks that a load reads without verifying them, by item, and their checksums.
	unproven     []unproven
	unprovenSums []uint64
}

// item is what a task knows of one ref.
type item struct {
	slot  tier.Slot // pinned while not nil
	fill  tier.Fill // not ended while not nil
	cause error     // an earlier failure that may be mended
	first int32     // a layerwise load: the first shard that is not yet on the page and verified
	group uint8     // the block's page group
	from  int8      // the pipeline's tier that the block was read from
	tries uint8
	wrong uint8 // copies to the page that failed their check
	skip  bool  // the block was there without the dump's doing

	// Of a load.
	checked bool // the slot was verified by the CPU: by the task, or by the tier that the block was read from
	misread bool // it was read wrong from below, which is not counted yet
	older   bool // its checksums cannot be compared with those of a copy
	touched bool // something may have been written to the page
}

// result is what a job found.
type result struct {
	kind jobKind
	i    int32
	err  error
}

func newScratch() *scratch {
	return &scratch{results: make(chan result, windowBlocks+windowReads), news: make(chan struct{}, 1)}
}

// tell says that there is something to take note of.
func (sc *scratch) tell() {
	select {
	case sc.news <- struct{}{}:
	default:
	}
}

// take prepares pooled scratch for refs, whose order todo keeps.
func (s *Store) take(refs []Ref) *scratch {
	sc, ok := s.scratch.Get().(*scratch)
	if !ok {
		sc = newScratch()
	}
	sc.refs = append(sc.refs[:0], refs...)
	if need := len(refs) + windowReads; cap(sc.results) < need {
		sc.results = make(chan result, need)
	}
	if cap(sc.items) < len(refs) {
		sc.items = make([]item, len(refs))
	}
	sc.items = sc.items[:len(refs)]
	sc.keys = sc.keys[:0]
	for i := range refs {
		sc.items[i].group = uint8(s.formats.Group(refs[i].Key)) // one of none is refused: see pageSet.check
		sc.keys = append(sc.keys, refs[i].Key)
		sc.todo = append(sc.todo, int32(i))
	}
	return sc
}

// keysOf returns the keys of items, until it is called again.
func (sc *scratch) keysOf(items []int32) []block.Key {
	first := int(items[0])
	for k, i := range items {
		if int(i) != first+k { // which is rare
			sc.ask = sc.ask[:0]
			for _, i := range items {
				sc.ask = append(sc.ask, sc.keys[i])
			}
			return sc.ask
		}
	}
	return sc.keys[first:][:len(items)]
}

// unprove makes room for blocks that are read without being verified.
func (sc *scratch) unprove(s *Store) {
	n, shards := len(sc.refs), s.formats.MaxShards()
	sc.unproven = slices.Grow(sc.unproven[:0], n)[:n]
	sc.unprovenSums = slices.Grow(sc.unprovenSums[:0], n*shards)[:n*shards]
}

func (s *Store) put(sc *scratch) {
	clear(sc.items)
	clear(sc.unproven)
	clear(sc.planes)
	sc.todo, sc.reads, sc.others, sc.ready = sc.todo[:0], sc.reads[:0], sc.others[:0], sc.ready[:0]
	s.scratch.Put(sc)
}

// span is a part of a slice.
type span struct{ from, to int }

// flatten puts the planes of every shard behind each other, page group by page group.
func (sc *scratch) flatten(s *Store, p *Pages) {
	sc.planes = sc.planes[:0]
	sc.shardAt = slices.Grow(sc.shardAt[:0], s.shards)[:s.shards]
	for _, layers := range s.layers {
		for _, k := range layers {
			n := len(sc.planes)
			sc.planes = append(sc.planes, p.Shards[k]...)
			slices.SortFunc(sc.planes[n:], func(a, b mem.Plane) int { return cmp.Compare(a.SlotOff, b.SlotOff) })
			sc.shardAt[k] = span{n, len(sc.planes)}
		}
	}
}

// partPlanes returns the planes of a part's shards.
func (sc *scratch) partPlanes(s *Store, p *part) []mem.Plane {
	layers := s.layers[p.group]
	return sc.planes[sc.shardAt[layers[p.shards.from]].from:sc.shardAt[layers[p.shards.to-1]].to]
}
