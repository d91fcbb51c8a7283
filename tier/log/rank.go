package log

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier"
)

// A rank orders blocks for eviction. It is the number of uses at the newest use of the block's prompt, less the block's position: the
// end of a prompt has lower ranks than its beginning. Each block of a use from the beginning of a prompt counts, but not those that
// extend one. The index keeps 32 bits of a rank, so that a block not used during 2^31 uses of others seems new. The log has the
// position, for a log that is opened without a checkpoint.

// rank64 returns the whole rank of an entry.
func rank64(now int64, rank uint32) int64 { return now - int64(int32(uint32(now)-rank)) }

// SetOrder gives the tier the order of the blocks that it will be asked to keep.
func (t *Tier) SetOrder(o *tier.Order) { t.places.Store(o) }

// Use raises the ranks of consecutive blocks of a prompt, of those that are here.
func (t *Tier) Use(keys []block.Key, at tier.Place) {
	if t.begin(context.Background()) != nil {
		return
	}
	defer t.gate.Leave()
	rank := t.nextRank(at, int64(len(keys)))
	for i, key := range keys {
		t.raise(key, rank-int64(i))
	}
}

// nextRank returns the rank of a block that is put or used now, with n-1 more after it. After a block that is here it has the rank
// after that block's.
func (t *Tier) nextRank(at tier.Place, n int64) int64 {
	if at.Before == (block.Key{}) {
		return t.uses.Add(n) - int64(at.Position)
	}
	now := t.uses.Load()
	if e, ok := t.table.get(at.Before); ok {
		return rank64(now, e.rank) - 1
	}
	return now - int64(at.Position) // it may be written at this moment
}

// raise gives a block that is here a rank, unless its own is higher.
func (t *Tier) raise(key block.Key, rank int64) {
	if e, ok := t.table.raise(key, uint32(rank)); ok {
		if g := t.segments.look(e.segment); g != nil {
			g.ranks.Add(rank - rank64(t.uses.Load(), e.rank))
		}
	}
}

// used notes that a block was read, or was to be put again. A store's calls of Use cover that.
func (t *Tier) used(key block.Key) {
	if t.places.Load() == nil {
		t.raise(key, t.uses.Add(1))
	}
}

// replayRank returns the rank of a record that is read from a segment, in the order of the log. Consecutive positions are a run. What
// was written between the runs of a prompt is not known, so a run counts as one use: positions decide first.
func (t *Tier) replayRank(position uint32) int64 {
	if p := t.replayed; p.any && position == p.position+1 {
		p.rank--
		t.replayed = replayed{true, position, p.rank}
		return p.rank
	}
	rank := t.uses.Add(1) - int64(position)
	t.replayed = replayed{true, position, rank}
	return rank
}

// replayed is the last record that was read from a segment.
type replayed struct {
	any      bool
	position uint32
	rank     int64
}

// meanAge returns the mean age of a segment's blocks, which is the number of uses since their ranks.
func (g *segment) meanAge(now int64) float64 {
	if n := g.blocks.Load(); n > 0 {
		return math.Max(0, float64(now)-float64(g.ranks.Load())/float64(n))
	}
	return 0
}

// victim returns the segment up to last whose bytes are oldest on average, or nil. Bytes without a block count twice as old as the
// oldest segment's.
func (t *Tier) victim(failed map[uint32]bool, s sweep, last uint32) (best *segment) {
	now, dead := t.uses.Load(), 1.0
	all := t.segments.list()
	for _, g := range all {
		dead = max(dead, 2*g.meanAge(now))
	}
	most := -1.0
	for _, g := range all {
		if g.number > last || !g.sealed.Load() || g.unread || failed[g.number] || s.all && !t.wasted(g) {
			continue
		}
		size, live := float64(max(1, g.size.Load())), float64(g.live.Load())
		if age := (g.meanAge(now)*live + dead*(size-live)) / size; age > most {
			best, most = g, age
		}
	}
	return best
}

// meanAge returns the mean age of all blocks.
func (t *Tier) meanAge(now int64) float64 {
	sum, n := 0.0, 0.0
	for _, g := range t.segments.list() {
		blocks := float64(g.blocks.Load())
		sum, n = sum+g.meanAge(now)*blocks, n+blocks
	}
	return sum / max(1, n)
}

// longSegments is how many times as long as a new segment one is that was made under a higher bound.
const longSegments = 2

// keepFrom decides which blocks of the segment are moved, as they were used more recently than blocks are on average: half of the
// segment at most, and no more bytes than were put since blocks were last moved. Of a segment that is longer than those that are made
// now, so much is kept that no more than excess is removed; long reports that.
func (e *emptying) keepFrom(ctx context.Context, excess int64) (long bool, err error) {
	t, v := e.t, e.v
	now := t.uses.Load()
	size := v.size.Load()
	e.budget, e.least = min(size/2, t.credit.Load()), now-int64(t.meanAge(now))
	if long = size >= longSegments*t.cfg.SegmentBytes && excess < size; long {
		e.budget, e.least = size-excess, math.MinInt64
	}
	if e.budget <= 0 {
		return long, nil
	}
	type ranked struct{ rank, bytes int64 }
	var blocks []ranked
	_, err = scan(ctx, v.file, v.number, 0, v.end.Load(), t.id, t.formats, func(h *header) error {
		for i := range h.records {
			r := &h.records[i]
			if have, ok := t.table.get(r.key); ok && r.kind != deleted && have.segment == v.number && have.off() == h.at.off+r.off {
				blocks = append(blocks, ranked{rank64(now, have.rank), storedBytes(t.formats[have.group])})
			}
		}
		return context.Cause(ctx)
	})
	slices.SortFunc(blocks, func(a, b ranked) int { return cmp.Compare(b.rank, a.rank) })
	left := e.budget
	for _, b := range blocks {
		if left -= b.bytes; left < 0 {
			e.least = max(e.least, b.rank+1)
			break
		}
	}
	return long, err
}
