// Package batch copies blocks between pages and the slots of the cache. A Group is a set of blocks
// that are copied together, by one batch of a stream or by several. Its parts complete one after
// the other. Check jobs verify or seal the blocks of completed parts on the CPU while later parts
// are copied.
package batch

import (
	"cmp"
	"slices"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store/pages"
)

// NewBuffers returns empty buffers.
func NewBuffers(env *Env) *Buffers { return &Buffers{env: env, wake: make(chan struct{}, 1)} }

// SetPages sets the planes of the task.
func (b *Buffers) SetPages(p *pages.Pages) {
	m := b.env.Map
	b.planes = b.planes[:0]
	b.layerPlanes = slices.Grow(b.layerPlanes[:0], m.NumLayers())[:m.NumLayers()]
	for _, layers := range m.Layers {
		for _, k := range layers {
			n := len(b.planes)
			b.planes = append(b.planes, p.Shards[k]...)
			slices.SortFunc(b.planes[n:], func(x, y mem.Plane) int { return cmp.Compare(x.SlotOff, y.SlotOff) })
			b.layerPlanes[k] = Span{n, len(b.planes)}
		}
	}
}

// CanSum reports whether streams can compute the checksums of these planes. All planes must consist
// of whole leaves. The leaves of a shard are then in the order of its planes, which cover the
// shard.
func (b *Buffers) CanSum() bool {
	if !b.env.Map.HasLeaves() {
		return false
	}
	_, ok := (&mem.PageGroup{Planes: b.planes, Slots: b.env.Slots}).Leaves()
	return ok
}

// Clear drops the references to the task's pages.
func (b *Buffers) Clear() { clear(b.planes) }

// Wake returns a channel that has an element if a part may have completed or been checked since the
// last receive.
func (b *Buffers) Wake() <-chan struct{} { return b.wake }

// notify wakes the task's goroutine. It never blocks.
func (b *Buffers) notify() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// partPlanes returns the planes of a part's shards.
func (b *Buffers) partPlanes(p *Part) []mem.Plane {
	layers := b.env.Map.Layers[p.Group]
	return b.planes[b.layerPlanes[layers[p.Shards.From]].From:b.layerPlanes[layers[p.Shards.To-1]].To]
}

// NewGroup returns an empty group from the free list, or a new one.
func (b *Buffers) NewGroup(owner Owner) *Group {
	if k := len(b.freeGroups); k > 0 {
		g := b.freeGroups[k-1]
		b.freeGroups = b.freeGroups[:k-1]
		g.owner, g.Slots = owner, b.env.Slots
		return g
	}
	n := len(b.env.Map.Layers)
	return &Group{buf: b, owner: owner, Slots: b.env.Slots, Items: make([][]int32, n), pairs: make([][]mem.PageSlot, n)}
}

// Release clears g and returns it to the free list. All its tickets must have resolved and all its
// check jobs must have finished.
func (b *Buffers) Release(g *Group) {
	for i := range g.Items {
		g.Items[i], g.pairs[i] = g.Items[i][:0], g.pairs[i][:0]
	}
	for _, batch := range g.batches {
		batch.ticket, batch.batch, batch.paged = nil, mem.Batch{}, mem.Paged{}
		clear(batch.pageGroups)
		b.freeBatches = append(b.freeBatches, batch)
	}
	clear(g.Failures)
	*g = Group{ // reuse the memory of all slices
		buf: b, Items: g.Items, pairs: g.pairs, Parts: g.Parts[:0], batches: g.batches[:0],
		sums: g.sums, jobs: g.jobs, freeJobs: g.freeJobs, Failures: g.Failures[:0],
	}
	b.freeGroups = append(b.freeGroups, g)
}

// newBatch returns a batch from the free list, or a new one. Its notify wakes the task's goroutine.
func (b *Buffers) newBatch() *inFlightBatch {
	if k := len(b.freeBatches); k > 0 {
		batch := b.freeBatches[k-1]
		b.freeBatches = b.freeBatches[:k-1]
		return batch
	}
	batch := new(inFlightBatch)
	batch.notify = func(parts int, hasSums bool) {
		n := int64(parts) * 2
		if hasSums {
			n++
		}
		batch.reported.Store(n)
		b.notify()
	}
	return batch
}
