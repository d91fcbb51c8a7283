package load

import (
	"time"

	"github.com/kvlane/kvlane/store/batch"
	"github.com/kvlane/kvlane/stream"
)

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
