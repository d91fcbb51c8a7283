package store

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// cohort is some blocks that are copied together, by one batch, or by several for a dump whose shards come one after another.
type cohort struct {
	members [][]int32        // by page group: the blocks
	pairs   [][]mem.PageSlot // by page group: their pages and slots
	n       int              // blocks
	parts   []part           // in the order in which they are copied
	flights []*flight
	landed  int   // parts that have landed, as far as has been taken note of
	bare    bool  // one of them without sums
	err     error // the first failure
	flown   int   // flights whose tickets have resolved, as far as has been taken note of
	// A dump's fills went to quarantine before the tickets resolved, until calm is closed.
	early bool
	calm  chan struct{}
	// Of a dump: its parts are shards of all blocks, and no block is sealed before all have landed.
	layered bool

	sums []uint64 // that streams are asked for; see ask
	used int      // of them, by parts so far
	// Of a load, by page group: the checksums that are to be, block by block and shard by shard, as far as they were gathered.
	wanted [][]uint64

	// Of what is checked, or sealed, once it has landed: see share.go.
	shares []*share
	spare  []*share // none of anybody
	proved int      // parts that have been taken note of after that
	wrongs []wrong
}

// part is what lands together: some shards of some of the blocks of one page group. It is a page group of a batch.
type part struct {
	group  int
	shards span // of the page group's blocks
	blocks span // of the cohort's in the page group

	sums    int          // where its sums begin in those of the cohort: block, shard, leaf
	leaves  int          // of one block
	summed  bool         // it has landed and its sums are there
	pending atomic.Int32 // shares of it that are worked on
}

// flight is a batch of a cohort: the parts from first to end-1.
type flight struct {
	first, end int
	pages      []mem.PageGroup
	paged      mem.Paged
	batch      mem.Batch
	ticket     *stream.Ticket
	submitted  time.Time
	told       atomic.Int64 // parts that have landed, as the stream says, times two, and one where their sums are there
	tell       func(groups int, summed bool)
}

// cohort returns an empty cohort.
func (sc *scratch) cohort(s *Store) *cohort {
	if k := len(sc.cohorts); k > 0 {
		g := sc.cohorts[k-1]
		sc.cohorts = sc.cohorts[:k-1]
		return g
	}
	n := len(s.layers)
	return &cohort{members: make([][]int32, n), pairs: make([][]mem.PageSlot, n), wanted: make([][]uint64, n)}
}

// free gives g back; all its tickets have resolved, and nobody works on its shares.
func (sc *scratch) free(g *cohort) {
	for i := range g.members {
		g.members[i], g.pairs[i], g.wanted[i] = g.members[i][:0], g.pairs[i][:0], g.wanted[i][:0]
	}
	for _, f := range g.flights {
		f.ticket, f.batch, f.paged = nil, mem.Batch{}, mem.Paged{}
		clear(f.pages)
		sc.flights = append(sc.flights, f)
	}
	clear(g.wrongs)
	g.n, g.parts, g.flights = 0, g.parts[:0], g.flights[:0]
	g.landed, g.bare, g.flown, g.err, g.early, g.calm, g.layered, g.used, g.proved, g.wrongs = 0, false, 0, nil, false, nil, false, 0, 0, g.wrongs[:0]
	sc.cohorts = append(sc.cohorts, g)
}

func (g *cohort) add(i int32, group uint8, page, slot uint32) {
	g.members[group] = append(g.members[group], i)
	g.pairs[group] = append(g.pairs[group], mem.PageSlot{Page: page, Slot: slot})
	g.n++
}

// all yields the blocks.
func (g *cohort) all(yield func(i int32) bool) {
	for _, members := range g.members {
		for _, i := range members {
			if !yield(i) {
				return
			}
		}
	}
}

// of returns the blocks of a part.
func (g *cohort) of(p *part) []int32 { return g.members[p.group][p.blocks.from:p.blocks.to] }

// planWhole plans all shards of all blocks, so many bytes a part.
func (g *cohort) planWhole(s *Store, bytes int64) {
	for group, members := range g.members {
		each := int(max(1, bytes/s.formats[group].Layout.ImageBytes()))
		for from := 0; from < len(members); from += each {
			g.plan(s, group, span{0, len(s.layers[group])}, span{from, min(from+each, len(members))})
		}
	}
}

// planLayers plans the task's shards from first on, one after the other: so many as PartBytes of all blocks are, or RowBytes of one, but no
// more than came before.
func (g *cohort) planLayers(s *Store, first int) {
	before := int64(0) // of a block
	for k := first; k < s.shards; {
		end, n, row := k, int64(0), int64(0)
		for end < s.shards && (end == k || n < s.cfg.PartBytes || row < min(s.cfg.RowBytes, before)) {
			w := s.where[end]
			each := s.formats[w.group].Layout.ShardBytes(w.shard)
			n += int64(len(g.members[w.group])) * each
			row += each
			end++
		}
		before += row
		g.planShards(s, k, end)
		k = end
	}
}

// planShards plans the task's shards from first to end-1: a part a page group.
func (g *cohort) planShards(s *Store, first, end int) {
	for group, members := range g.members {
		from, _ := slices.BinarySearch(s.layers[group], first)
		to, _ := slices.BinarySearch(s.layers[group], end)
		if from < to && len(members) > 0 {
			g.plan(s, group, span{from, to}, span{0, len(members)})
		}
	}
}

func (g *cohort) plan(s *Store, group int, shards, blocks span) {
	g.parts = append(g.parts, part{group: group, shards: shards, blocks: blocks})
	p := &g.parts[len(g.parts)-1]
	if s.leaves == nil {
		return
	}
	last := s.leaves.shard(where{group, shards.to - 1})
	p.leaves = last.before + last.n - s.leaves.shard(where{group, shards.from}).before
	p.sums = g.used
	g.used += p.leaves * (blocks.to - blocks.from)
}

// planned returns how many blocks of its page group the last part reaches.
func (g *cohort) planned() int {
	if n := len(g.parts); n > 0 {
		return g.parts[n-1].blocks.to
	}
	return 0
}

// ask makes room for the sums of all leaves of the cohort's blocks, and of more blocks.
func (g *cohort) ask(s *Store, more int) {
	n := 0
	for group := range s.formats {
		n = max(n, more*s.leaves.block(group))
	}
	for group, members := range g.members {
		n += len(members) * s.leaves.block(group)
	}
	g.sums = slices.Grow(g.sums[:0], n)[:n]
}

// fly makes the batch of the parts that have been planned and are in no flight yet. With summed, streams are asked for sums.
func (g *cohort) fly(s *Store, sc *scratch, dir mem.Direction, summed bool) *flight {
	f := sc.flight()
	f.first, f.end = g.sent(), len(g.parts)
	f.pages = f.pages[:0]
	for i := f.first; i < f.end; i++ {
		p := &g.parts[i]
		f.pages = append(f.pages, mem.PageGroup{
			Planes: sc.partPlanes(s, p), Slots: s.slots, Pairs: g.pairs[p.group][p.blocks.from:p.blocks.to],
		})
	}
	f.paged = mem.Paged{Dir: dir, Groups: f.pages, Landed: f.tell}
	if summed {
		f.paged.Sums = g.sums[g.parts[f.first].sums:g.used]
	}
	f.batch = mem.Batch{Paged: &f.paged}
	f.told.Store(0)
	return f
}

// flight returns one that tells sc's task.
func (sc *scratch) flight() *flight {
	if k := len(sc.flights); k > 0 {
		f := sc.flights[k-1]
		sc.flights = sc.flights[:k-1]
		return f
	}
	f := new(flight)
	f.tell = func(groups int, summed bool) {
		n := int64(groups) * 2
		if summed {
			n++
		}
		f.told.Store(n)
		sc.tell()
	}
	return f
}

// briefBytes is how large a copy may be for whoever waits for it to poll: 8 MiB take 170 us over PCIe 5, and two goroutines that are woken up
// one after the other 15 to 20.
const briefBytes = 8 << 20

// brief says whether the cohort is one small batch that tells nothing before it resolves.
func (g *cohort) brief() bool {
	if g.quiet() || len(g.flights) > 1 || len(g.parts) > 1 {
		return false
	}
	n := int64(0)
	for _, pages := range g.flights[0].pages {
		for k := range pages.Planes {
			n += pages.Planes[k].Bytes * int64(len(pages.Pairs))
		}
	}
	return n <= briefBytes
}

// sent returns how many parts are in flights.
func (g *cohort) sent() int {
	if n := len(g.flights); n > 0 {
		return g.flights[n-1].end
	}
	return 0
}

// launch hands the flight to a lane, to come after recorded work.
func (g *cohort) launch(ctx context.Context, l *lane, f *flight, after ...stream.Recorded) error {
	f.submitted = l.s.clock.Now()
	ticket, err := l.submit(ctx, &f.batch, after...)
	if err != nil {
		return err
	}
	f.ticket = ticket
	g.flights = append(g.flights, f)
	return nil
}

// news takes note of what has landed, and of tickets that have resolved. It returns the parts that have landed since the last time.
func (g *cohort) news(t *task, l *lane, all *tally) span {
	before := g.landed
	for g.flown < len(g.flights) {
		f := g.flights[g.flown]
		resolved := f.ticket.Poll() // before what it told is looked at, which is all then
		told := f.told.Load()
		n, summed := int(told/2), told%2 == 1
		if resolved {
			t.travelled(l, all, f)
			if err := f.ticket.Err(); err != nil {
				g.fail(err)
			} else {
				n, summed = f.end-f.first, f.ticket.Completion().Summed
			}
		}
		for g.landed >= f.first && g.landed < f.first+n { // behind a flight that failed nothing counts
			g.parts[g.landed].summed = summed
			g.bare = g.bare || !summed
			g.landed++
		}
		if !resolved {
			break
		}
		g.flown++
	}
	return span{before, g.landed}
}

// quiet says whether every ticket has resolved, and that was taken note of.
func (g *cohort) quiet() bool { return g.flown == len(g.flights) }

// oldest is closed when the first ticket that was not taken note of has resolved; nil where there is none.
func (g *cohort) oldest() <-chan struct{} {
	if g.quiet() {
		return nil
	}
	return g.flights[g.flown].ticket.Done()
}

func (g *cohort) cancel() {
	for _, f := range g.flights[g.flown:] {
		f.ticket.Cancel()
	}
}

// fail notes a failure, if err is one.
func (g *cohort) fail(err error) {
	if g.err == nil {
		g.err = err
	}
}

// leavesOf returns the sums of the leaves of a shard of a block, which is the part's place-th.
func (g *cohort) leavesOf(s *Store, p *part, place, shard int) []uint64 {
	l := s.leaves.shard(where{p.group, shard})
	from := p.sums + place*p.leaves + l.before - s.leaves.shard(where{p.group, p.shards.from}).before
	return g.sums[from : from+l.n]
}
