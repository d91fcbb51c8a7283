package load

import (
	"slices"
	"time"

	"github.com/kvlane/kvlane/store/batch"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/stream"
)

// Limits of one load.
const (
	firstBlocks = 128 // blocks of the first batch, so that copying starts early
	maxInFlight = 2   // groups in the stream: one is copied while the next is built
)

// lookUp opens the next blocks that are in the cache, to be copied with a group of groupBlocks
// blocks, and sorts the others.
func (t *Task) lookUp(groupBlocks int) {
	n := len(t.sc.Todo)
	switch {
	case !t.sc.CopiesUnchecked: // LookUp bounds the slots
	case t.layerwise:
		if piece := min(max(groupBlocks, t.l.pieceBlocks), 4*t.l.pieceBlocks); n >= 2*piece {
			n = piece // so that copying starts early
		}
	case t.inFlight == 0:
		n = min(n, firstBlocks)
	}
	t.sc.LookUp(n)
}

// startGroups starts copies of ready blocks, unless enough groups are in flight or more blocks will
// be ready soon.
func (t *Task) startGroups() {
	for len(t.sc.Ready) > 0 && t.inFlight < maxInFlight && len(t.groups) < 2*maxInFlight {
		// A layerwise load uses one group, so that the first layers of all blocks are copied before
		// the later layers of any block.
		n := t.gatherReady(t.sc.Items[t.sc.Ready[0]].FirstLayer, t.sc.IsDirect(t.sc.Ready[0]))
		if !t.layerwise {
			n = min(n, t.l.batchBlocks)
		}
		if t.sc.Verifying > 0 && (t.layerwise || n < t.l.batchBlocks) {
			return
		}
		t.startGroup(n)
	}
}

// gatherReady moves ready blocks to the front of sc.Ready and returns their number. It selects the
// blocks whose first missing layer is first and that are, according to direct, in device memory or
// not. Blocks that are copied again lack only layers that were not reported.
func (t *Task) gatherReady(first int32, direct bool) int {
	ready, items := t.sc.Ready, t.sc.Items
	n := 0
	for k := range ready {
		if items[ready[k]].FirstLayer == first && t.sc.IsDirect(ready[k]) == direct {
			ready[n], ready[k] = ready[k], ready[n]
			n++
		}
	}
	return n
}

// span returns positions from to to-1.
func span(from, to int) batch.Span { return batch.Span{From: from, To: to} }

// startGroup starts copying the first n ready blocks, block by block in one batch, or layer by
// layer.
func (t *Task) startGroup(n int) {
	g, first := t.newGroup(t.sc.IsDirect(t.sc.Ready[0])), t.sc.Items[t.sc.Ready[0]].FirstLayer
	t.addReady(g, n)
	t.addDirect(g)
	if t.copySums {
		g.ReserveSums(len(t.sc.Todo))
	}
	if t.layerwise {
		g.nextLayer = t.copyHead(g, first)
		g.headBatches = g.Batches()
		t.copyLayers(g)
	} else {
		g.PlanBlocks(WholeParts * t.l.PartBytes)
		t.submit(g, false)
	}
	t.groups = append(t.groups, g)
	if g.Err != nil {
		t.advance()
	}
}

// copyHead copies the first layer of g in pieces and looks up further blocks meanwhile, which join
// g. The first layer is then complete early, and still precedes all later layers of each block. If
// no blocks are left to look up, it copies nothing. It returns the next layer to copy.
func (t *Task) copyHead(g *group, first int32) int {
	if len(t.sc.Todo) == 0 || !t.sc.CopiesUnchecked {
		return int(first)
	}
	shard := t.p.Map.Shard(int(first))
	plan := func() {
		if planned, all := g.PlannedBlocks(), len(g.Items[shard.Group]); planned < all {
			g.Plan(shard.Group, span(shard.Index, shard.Index+1), span(planned, all))
		}
	}
	awaited := t.usesStrides(g)
	for plan(); len(t.sc.Todo) > 0 && g.Err == nil; plan() {
		t.submit(g, awaited)
		t.lookUp(g.Blocks)
		t.addReady(g, t.gatherReady(first, g.direct))
	}
	return int(first) + 1
}

// addReady moves the first n ready blocks to g.
func (t *Task) addReady(g *group, n int) {
	for _, i := range t.sc.Ready[:n] {
		it := &t.sc.Items[i]
		it.NoLeafSums = it.Checked && it.Slot.Sums() == nil
		g.Add(i, t.sc.Groups[i], t.sc.Refs.Refs[i].Page, it.Slot.Index())
	}
	t.sc.Ready = append(t.sc.Ready[:0], t.sc.Ready[n:]...)
}

// advance processes completed, verified and failed parts.
func (t *Task) advance() {
	for n := 0; n < len(t.groups); {
		g := t.groups[n]
		if !g.AllResolved() {
			completed := g.Poll()
			for k := completed.From; k < completed.To; k++ {
				t.checkPart(g, k)
				t.processChecked(g, k+1)
			}
			t.copyLayers(g)
			if g.AllResolved() {
				t.inFlight--
			}
		}
		t.processChecked(g, g.Completed)
		if !g.AllResolved() || g.Checked < g.Completed {
			n++
			continue
		}
		t.groups = slices.Delete(t.groups, n, n+1)
		for k := g.Checked; k < len(g.Parts); k++ {
			t.resolveBlocks(g, k)
		}
		t.recheckFailed(g)
		t.sc.release(g)
	}
}

// processChecked reports the parts of g before end whose checks have finished.
func (t *Task) processChecked(g *group, end int) {
	for n := g.NextChecked(end); n >= 0; n = g.NextChecked(end) {
		t.completeLayers(g, n)
		t.resolveBlocks(g, n)
	}
}

// completeLayers counts the layers that part n of g has copied. The part has been checked.
func (t *Task) completeLayers(g *group, n int) {
	if !t.layerwise {
		return
	}
	p := g.Parts[n]
	right := p.Blocks.Len() - g.FailedBy(n)
	for k := p.Shards.From; k < p.Shards.To && right > 0; k++ {
		t.layers.Complete(t.p.Map.Layers[p.Group][k], right)
	}
}

// resolveBlocks sets the results of the blocks whose last shard is in part n of g. If the part was
// not checked, it will not be checked later, and the blocks fail. recheckFailed handles blocks
// whose copy failed its check.
func (t *Task) resolveBlocks(g *group, n int) {
	p, sc := g.Parts[n], t.sc
	if p.Shards.To < len(t.p.Map.Layers[p.Group]) {
		return
	}
	var count verifiedCount
	sc.slots = sc.slots[:0]
	for k, i := range g.ItemsOf(p) {
		it := &sc.Items[i]
		if g.FirstFailure(i) != nil {
			continue
		}
		if n >= g.Checked {
			t.setFirstLayer(g, i, firstUnchecked(g, p.Group, p.Blocks.From+k))
			t.sc.Fail(i, g.Err)
			continue
		}
		count.add(t, it, !g.MissingSums || hasAllSums(g, p.Group, p.Blocks.From+k))
		if t.sc.Publish(i) != nil { // the page has valid data nevertheless
			t.sc.DropSlot(it)
			continue
		}
		if g.direct {
			t.sc.DropSlot(it)
			continue
		}
		sc.slots = append(sc.slots, it.Slot)
		it.Slot = nil
	}
	count.addTo(t, t.p.Map.Formats[p.Group].Layout.ImageBytes())
	sc.Release(sc.slots)
	clear(sc.slots)
}

// recheckFailed rechecks the blocks of g whose copy failed its check. Their pages are no longer
// written.
func (t *Task) recheckFailed(g *group) {
	for k := range g.Failures {
		f := &g.Failures[k]
		if g.FirstFailure(f.Item) == f {
			t.setFirstLayer(g, f.Item, f.Part)
			if g.direct {
				t.sc.RetryRead(f.Item, f.Err)
			} else {
				t.sc.Recheck(f.Item, f.Err)
			}
		}
	}
}

// firstUnchecked returns the first unchecked part that has the block at this position of a page
// group, or -1.
func firstUnchecked(g *group, pageGroup, position int) int {
	for n := g.Checked; n < len(g.Parts); n++ {
		if g.Parts[n].Has(pageGroup, position) {
			return n
		}
	}
	return -1
}

// setFirstLayer records that block i lacks the layers from part n of g on.
func (t *Task) setFirstLayer(g *group, i int32, n int) {
	if t.layerwise {
		t.sc.Items[i].FirstLayer = int32(t.p.Map.Layers[t.sc.Groups[i]][g.Parts[n].Shards.From])
	}
}

// hasAllSums reports whether all parts with the block at this position of a page group have sums.
func hasAllSums(g *group, pageGroup, position int) bool {
	for _, p := range g.Parts {
		if !p.HasSums && p.Has(pageGroup, position) {
			return false
		}
	}
	return true
}

// addDirect records the direct reads of a group's blocks as one completion.
func (t *Task) addDirect(g *group) {
	if !g.direct {
		return
	}
	c := stream.Completion{Path: stream.PathCuFile, Reason: t.p.Direct.Reason}
	if t.layerwise && len(t.sc.Refs.Refs) > t.p.Direct.Pool.Stats().Slots {
		c.Reason += "; the load has more blocks than the memory of direct storage, so each layer is complete only with the last blocks"
	}
	for i := range g.All {
		b, ok := t.sc.Items[i].Slot.(*pipeline.DirectBlock)
		if !ok {
			continue
		}
		c.Bytes += t.p.Map.Formats[t.sc.Groups[i]].Layout.ImageBytes()
		c.Pieces++
		if c.Started.IsZero() || b.Started.Before(c.Started) {
			c.Started = b.Started
		}
		if b.Finished.After(c.Finished) {
			c.Finished = b.Finished
		}
	}
	t.base.AddCompletion(t.l.Env.Stream.Name(), &t.p.Count.LoadPaths, c, c.Started, nil)
}

// group is a batch group of a load.
type group struct {
	*batch.Group
	direct      bool // the blocks are in slots of device memory
	nextLayer   int  // layerwise: first layer without a planned part
	headBatches int  // layerwise: number of batches of the first layer
	// wantedSums holds, by page group, the expected checksums by block and shard that were loaded
	// so far.
	wantedSums [][]uint64
}

// release returns g to the free list.
func (sc *scratch) release(g *group) {
	sc.buffers.Release(g.Group)
	for i := range g.wantedSums {
		g.wantedSums[i] = g.wantedSums[i][:0]
	}
	*g = group{wantedSums: g.wantedSums}
	sc.groups = append(sc.groups, g)
}

// newGroup returns an empty group from the free list, or a new one.
func (t *Task) newGroup(direct bool) *group {
	sc := t.sc
	var g *group
	if k := len(sc.groups); k > 0 {
		g = sc.groups[k-1]
		sc.groups = sc.groups[:k-1]
	} else {
		g = &group{wantedSums: make([][]uint64, len(t.p.Map.Layers))}
	}
	g.Group = sc.buffers.NewGroup((*owner)(t))
	if g.direct = direct; direct {
		g.Slots = t.p.Direct.Pool.Slots()
	}
	return g
}

// owner implements batch.Owner for a task.
type owner Task

// BatchResolved implements batch.Owner.
func (t *owner) BatchResolved(c stream.Completion, submittedAt time.Time, err error) {
	t.base.AddCompletion(t.l.Env.Stream.Name(), &t.p.Count.LoadPaths, c, submittedAt, err)
}
