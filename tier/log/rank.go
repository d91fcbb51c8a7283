package log

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier"
)

// A rank orders blocks for eviction. It is the use count at the latest use of the block's prompt,
// minus the block's position, so that the end of a prompt has lower ranks than its beginning. A use
// of n blocks that begins at position 0 raises the count by n. A use that begins later does not
// raise it. The index keeps 32 bits of a rank: a block that is not used while the count grows by
// 2^31 appears new. Records contain the position, for logs that are opened without a checkpoint.

// rank64 returns the full rank of an entry with these 32 bits.
func rank64(now int64, rank uint32) int64 { return now - int64(int32(uint32(now)-rank)) }

// SetOrder sets the order of the blocks that will be stored.
func (t *Tier) SetOrder(o *tier.Order) { t.places.Store(o) }

// Use raises the ranks of consecutive blocks of a prompt. It ignores blocks that are not in the
// log.
func (t *Tier) Use(keys []block.Key, at tier.Place) {
	if t.beginOp(context.Background()) != nil {
		return
	}
	defer t.ops.EndOp()
	rank := t.nextRank(at, int64(len(keys)))
	for i, key := range keys {
		t.raise(key, rank-int64(i))
	}
}

// nextRank returns the rank of a block that is stored or used now, followed by n-1 others. If the
// block before it is in the log, the rank is one below that block's.
func (t *Tier) nextRank(at tier.Place, n int64) int64 {
	if at.Before == (block.Key{}) {
		return t.uses.Add(n) - int64(at.Position)
	}
	now := t.uses.Load()
	if e, ok := t.table.get(at.Before); ok {
		return rank64(now, e.rank) - 1
	}
	return now - int64(at.Position) // the block before it may still be queued
}

// raise sets the rank of a block in the log, unless the block already has a higher one.
func (t *Tier) raise(key block.Key, rank int64) {
	if e, ok := t.table.raise(key, uint32(rank)); ok {
		if g := t.segments.get(e.segment); g != nil {
			g.ranks.Add(rank - rank64(t.uses.Load(), e.rank))
		}
	}
}

// used counts a use of a block that was read or stored again. It does nothing if a store has set an
// order, because the store then calls Use.
func (t *Tier) used(key block.Key) {
	if t.places.Load() == nil {
		t.raise(key, t.uses.Add(1))
	}
}

// replayRank returns the rank of a record that is read from a segment, in the order of the log.
// Records with consecutive positions form a run, which counts as one use, because the uses between
// the runs of a prompt are unknown. Therefore ranks depend first on positions.
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

// replayed describes the last record that was read from a segment.
type replayed struct {
	any      bool
	position uint32
	rank     int64
}

// meanAge returns the mean age of a segment's blocks. The age of a block is the growth of the use
// count since its rank.
func (g *segment) meanAge(now int64) float64 {
	if n := g.blocks.Load(); n > 0 {
		return math.Max(0, float64(now)-float64(g.ranks.Load())/float64(n))
	}
	return 0
}

// victim returns the segment up to number last with the highest mean age of its bytes, or nil.
// Bytes without a block count as twice as old as the oldest segment's mean.
func (t *Tier) victim(failed map[uint32]bool, s sweep, last uint32) (best *segment) {
	now, dead := t.uses.Load(), 1.0
	all := t.segments.list()
	for _, g := range all {
		dead = max(dead, 2*g.meanAge(now))
	}
	most := -1.0
	for _, g := range all {
		if g.number > last || !g.sealed.Load() || g.unread || failed[g.number] || s.all && !t.wasted(g) || t.needsDeletions(g) {
			continue
		}
		size, live := float64(max(1, g.used())), float64(g.live.Load())
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

// keepFrom sets the lowest rank of the blocks to move instead of evicting them, and the number of
// bytes that may be moved. Blocks younger than the mean are moved, but at most half of the segment,
// and at most as many bytes as were stored since blocks were last moved.
func (e *compaction) keepFrom(ctx context.Context) error {
	t, v := e.t, e.v
	now := t.uses.Load()
	e.budget, e.least = min(v.used()/2, t.credit.Load()), now-int64(t.meanAge(now))
	if e.budget <= 0 {
		return nil
	}
	type ranked struct{ rank, bytes int64 }
	var blocks []ranked
	_, err := scan(ctx, v.file, v.number, 0, v.end.Load(), t.id, t.formats, func(h *header) error {
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
	return err
}
