package batch

import (
	"context"
	"slices"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// Has reports whether the part contains the block at this position of a page group.
func (p *Part) Has(group, position int) bool {
	return p.Group == group && position >= p.Blocks.From && position < p.Blocks.To
}

// Add adds block i of a page group, to be copied between page and slot.
func (g *Group) Add(i int32, group uint8, page, slot uint32) {
	g.Items[group] = append(g.Items[group], i)
	g.pairs[group] = append(g.pairs[group], mem.PageSlot{Page: page, Slot: slot})
	g.Blocks++
}

// All yields the blocks of all page groups.
func (g *Group) All(yield func(i int32) bool) {
	for _, items := range g.Items {
		for _, i := range items {
			if !yield(i) {
				return
			}
		}
	}
}

// ItemsOf returns the blocks of p.
func (g *Group) ItemsOf(p *Part) []int32 { return g.Items[p.Group][p.Blocks.From:p.Blocks.To] }

// PlanBlocks plans parts of about partBytes. Each has all shards of its blocks.
func (g *Group) PlanBlocks(partBytes int64) {
	m := g.buf.env.Map
	for group, items := range g.Items {
		n := int(max(1, partBytes/m.Formats[group].Layout.ImageBytes()))
		for from := 0; from < len(items); from += n {
			g.Plan(group, Span{0, len(m.Layers[group])}, Span{from, min(from+n, len(items))})
		}
	}
}

// PlanLayers plans layers first to end-1 of all blocks, as one part for each page group that has
// blocks.
func (g *Group) PlanLayers(first, end int) {
	for group, items := range g.Items {
		layers := g.buf.env.Map.Layers[group]
		from, _ := slices.BinarySearch(layers, first)
		to, _ := slices.BinarySearch(layers, end)
		if from < to && len(items) > 0 {
			g.Plan(group, Span{from, to}, Span{0, len(items)})
		}
	}
}

// Plan plans one part. If streams can compute checksums, it assigns sums to the part.
func (g *Group) Plan(group int, shards, blocks Span) {
	p := g.addPart(group, shards, blocks)
	m := g.buf.env.Map
	if !m.HasLeaves() {
		return
	}
	p.leavesPerBlock = m.ShardLeaves(group, shards.To-1).End() - m.ShardLeaves(group, shards.From).Before
	p.firstSum = g.usedSums
	g.usedSums += p.leavesPerBlock * blocks.Len()
}

// addPart appends a part. It reuses the parts of an earlier use of g.
func (g *Group) addPart(group int, shards, blocks Span) *Part {
	n := len(g.Parts)
	g.Parts = slices.Grow(g.Parts, 1)[:n+1]
	if g.Parts[n] == nil {
		g.Parts[n] = new(Part)
	}
	p := g.Parts[n]
	*p = Part{Group: group, Shards: shards, Blocks: blocks}
	return p
}

// PlannedBlocks returns the end of the last part's blocks in its page group, or 0 if there are no
// parts.
func (g *Group) PlannedBlocks() int {
	if n := len(g.Parts); n > 0 {
		return g.Parts[n-1].Blocks.To
	}
	return 0
}

// ReserveSums allocates memory for the sums of all leaves of the group's blocks and of more blocks
// that may be added. Without it the stream computes no sums.
func (g *Group) ReserveSums(more int) {
	m := g.buf.env.Map
	n := 0
	for group := range m.Formats {
		n = max(n, more*m.BlockLeaves(group))
	}
	for group, items := range g.Items {
		n += len(items) * m.BlockLeaves(group)
	}
	g.sums = slices.Grow(g.sums[:0], n)[:n]
}

// SubmitOptions are options of Group.Submit.
type SubmitOptions struct {
	Sums    bool              // ask the stream for sums: see ReserveSums
	Awaited bool              // a stream of the host program waits for this batch
	After   []stream.Recorded // device work that the batch waits for
}

// Submit submits the parts that are planned and not yet submitted as one batch. On failure it sets
// g.Err.
func (g *Group) Submit(ctx context.Context, o SubmitOptions) {
	env := g.buf.env
	b := g.build(o)
	b.submittedAt = env.Clock.Now()
	ticket, err := env.Stream.Submit(ctx, &b.batch, o.After...)
	if err != nil {
		g.Fail(err)
		return
	}
	b.ticket = ticket
	g.batches = append(g.batches, b)
}

// build returns a batch of the parts that are not in an earlier batch.
func (g *Group) build(o SubmitOptions) *inFlightBatch {
	b := g.buf.newBatch()
	b.first, b.end = g.SubmittedParts(), len(g.Parts)
	b.pageGroups = b.pageGroups[:0]
	for _, p := range g.Parts[b.first:b.end] {
		b.pageGroups = append(b.pageGroups, mem.PageGroup{
			Planes: g.buf.partPlanes(p), Slots: g.Slots, Pairs: g.pairs[p.Group][p.Blocks.From:p.Blocks.To],
		})
	}
	b.paged = mem.Paged{Dir: g.buf.env.Dir, Groups: b.pageGroups, Completed: b.notify}
	if o.Sums {
		b.paged.Sums = g.sums[g.Parts[b.first].firstSum:g.usedSums]
	}
	b.batch = mem.Batch{Paged: &b.paged, Awaited: o.Awaited}
	b.reported.Store(0)
	return b
}

// SubmittedParts returns the number of parts in submitted batches.
func (g *Group) SubmittedParts() int {
	if n := len(g.batches); n > 0 {
		return g.batches[n-1].end
	}
	return 0
}

// Batches returns the number of submitted batches.
func (g *Group) Batches() int { return len(g.batches) }

// Poll processes completed parts and resolved tickets. It returns the parts that completed since
// the last call. It does not block.
func (g *Group) Poll() Span {
	before := g.Completed
	for !g.AllResolved() {
		b := g.batches[g.Resolved]
		// Poll the ticket first: if it has resolved, b.reported is final.
		resolved := b.ticket.Poll()
		reported := b.reported.Load()
		n, hasSums := int(reported/2), reported%2 == 1
		if resolved {
			err := b.ticket.Err()
			g.buf.env.Stream.Resolved()
			g.owner.BatchResolved(b.ticket.Completion(), b.submittedAt, err)
			if err != nil {
				g.Fail(err)
			} else {
				n, hasSums = b.end-b.first, b.ticket.Completion().Summed
			}
		}
		// After a failed batch g.Completed stays below b.first, and parts of later batches are not
		// counted.
		for !g.frozen && g.Completed >= b.first && g.Completed < b.first+n {
			g.Parts[g.Completed].HasSums = hasSums
			g.MissingSums = g.MissingSums || !hasSums
			g.Completed++
		}
		if !resolved {
			break
		}
		g.Resolved++
	}
	return Span{before, g.Completed}
}

// Freeze stops counting completed parts.
func (g *Group) Freeze() { g.frozen = true }

// AllResolved reports whether Poll has processed every ticket.
func (g *Group) AllResolved() bool { return g.Resolved == len(g.batches) }

// OldestDone returns the Done channel of the oldest ticket that Poll has not processed, or nil.
func (g *Group) OldestDone() <-chan struct{} {
	if g.AllResolved() {
		return nil
	}
	return g.batches[g.Resolved].ticket.Done()
}

// Cancel cancels the tickets that Poll has not processed.
func (g *Group) Cancel() {
	for _, b := range g.batches[g.Resolved:] {
		b.ticket.Cancel()
	}
}

// Fail sets g.Err, unless it is set already.
func (g *Group) Fail(err error) {
	if g.Err == nil {
		g.Err = err
	}
}

// PartSums returns the leaf sums of p by block, and the number of sums of one block.
func (g *Group) PartSums(p *Part) (sums []uint64, perBlock int) {
	return g.sums[p.firstSum : p.firstSum+p.leavesPerBlock*p.Blocks.Len()], p.leavesPerBlock
}

// LeafSums returns the leaf sums of one shard, for the block at this position in p.
func (g *Group) LeafSums(p *Part, position, shard int) []uint64 {
	m := g.buf.env.Map
	l := m.ShardLeaves(p.Group, shard)
	from := p.firstSum + position*p.leavesPerBlock + l.Before - m.ShardLeaves(p.Group, p.Shards.From).Before
	return g.sums[from : from+l.Count]
}
