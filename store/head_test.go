package store_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
)

// recorder is a stream that records its batches and can refuse some.
type recorder struct {
	stream.Stream
	mu      sync.Mutex
	batches [][]mem.PageGroup // copies that stay unchanged after Submit
	awaited []bool            // for each batch: whether Submit was called for a stream that waits
	before  func(n int)       // called before batch n is submitted, counted from 1
	refused int               // first batch that Submit refuses, counted from 1; 0: none
}

var errRefused = errors.New("refused")

func (s *recorder) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.Paged != nil {
		var groups []mem.PageGroup
		for _, g := range b.Paged.Groups {
			groups = append(groups, mem.PageGroup{Planes: slices.Clone(g.Planes), Pairs: slices.Clone(g.Pairs)})
		}
		s.batches, s.awaited = append(s.batches, groups), append(s.awaited, b.Awaited)
		if s.before != nil {
			s.before(len(s.batches))
		}
		if s.refused > 0 && len(s.batches) >= s.refused {
			return nil, errRefused
		}
	}
	return s.Stream.Submit(ctx, b)
}

// recorded returns a rig that records the batches of loads, the recorder, and the cached blocks.
func recorded(t *testing.T, o rigOptions, blocks int) (*rig, *recorder, []int) {
	t.Helper()
	rec := new(recorder)
	o.slots, o.pages = 2*blocks, blocks
	o.wrapLoad = func(st stream.Stream) stream.Stream {
		rec.Stream = st
		return rec
	}
	r := newRig(t, o)
	ns := make([]int, blocks)
	for i := range ns {
		ns[i] = i
	}
	r.dump(ns...)
	return r, rec, ns
}

// layerOf returns the layer of the model that plane p belongs to.
func (r *rig) layerOf(p mem.Plane) int {
	return slices.IndexFunc(r.pages.Shards, func(planes []mem.Plane) bool { return slices.Contains(planes, p) })
}

// A layerwise load of many blocks submits copies before it has looked up all blocks. It copies
// every layer of each block once, and each block's layers in order.
func TestLayersInOrderWhileBlocksAreLookedUp(t *testing.T) {
	t.Parallel()
	for _, o := range []rigOptions{{planeBytes: leafy, sumEvery: 1}, {tune: func(c *store.Config) { c.Verify = store.VerifyFill }}, {groups: 2, shards: 5, planeBytes: leafy, sumEvery: 1}} {
		const blocks = 24
		r, rec, ns := recorded(t, o, blocks)
		lease, err := r.st.LeasePrefix(r.ctx(), r.keys(ns...), 0)
		r.must(err)
		for _, missing := range []bool{false, true} {
			all := slices.Clone(ns)
			if missing { // use a block that no tier has
				all[0], all[blocks/2], all[blocks-1] = 100, 101, 102
			}
			rec.batches = nil
			copied := make(map[[2]int]bool)
			for i, err := range r.load(store.LoadOptions{Layerwise: true}, all...) {
				if lost := all[i] >= 100; (err != nil) != lost {
					t.Errorf("block %d: %v", all[i], err)
				}
			}
			last := 0
			for _, groups := range rec.batches {
				for _, g := range groups {
					first, end := r.layerOf(g.Planes[0]), r.layerOf(g.Planes[len(g.Planes)-1])+1
					if first < last {
						t.Errorf("layer %d is copied behind layer %d", first, last)
					}
					last = first
					for k := first; k < end; k++ {
						for _, ps := range g.Pairs {
							if id := [2]int{int(ps.Page), k}; copied[id] {
								t.Errorf("layer %d of page %d is copied twice", k, ps.Page)
							} else {
								copied[id] = true
							}
						}
					}
				}
			}
			if len(rec.batches) < 3 {
				t.Errorf("%d batches: nothing was copied ahead", len(rec.batches))
			}
		}
		lease.Release()
		if n := r.cache.Stats().Retained; n != 0 {
			t.Errorf("%d pins are left", n)
		}
	}
}

// If the copy of batch n of a layerwise load is refused, the pages of earlier batches are undefined
// and those of later batches are unchanged. This also holds for loads in strides.
func TestLayersWithARefusedCopy(t *testing.T) {
	t.Parallel()
	refuse(t, rigOptions{planeBytes: leafy, sumEvery: 1}, store.LoadOptions{Layerwise: true})
	refuse(t, strideOptions(4), store.LoadOptions{Layerwise: true, Progress: new(fakeProgress)})
}

func refuse(t *testing.T, rigged rigOptions, o store.LoadOptions) {
	t.Helper()
	for refused := 1; ; refused++ {
		r, rec, ns := recorded(t, rigged, 12)
		rec.refused = refused
		if o.Progress != nil {
			o.Progress = new(fakeProgress)
		}
		errs := r.load(o, ns...)
		if len(rec.batches) < refused {
			if refused < 3 {
				t.Errorf("%d batches: nothing was copied ahead", refused-1)
			}
			r.must(errors.Join(errs...))
			return
		}
		begun := make(map[uint32]bool)
		for _, groups := range rec.batches[:refused-1] {
			for _, ps := range groups[0].Pairs {
				begun[ps.Page] = true
			}
		}
		for i, err := range errs {
			var b *store.BlockError
			if !errors.As(err, &b) || !errors.Is(err, errRefused) || b.Undefined != begun[uint32(i)] {
				t.Errorf("batch %d: block %d of %d that were begun: %v", refused, i, len(begun), err)
			}
			if !begun[uint32(i)] && !r.poisoned(uint32(i)) {
				t.Errorf("batch %d: page %d was written to", refused, i)
			}
		}
		if n := r.cache.Stats().Retained; n != 0 {
			t.Errorf("%d pins are left", n)
		}
		rec.mu.Lock()
		rec.refused = 0
		rec.mu.Unlock()
		r.mustLoad(ns...)
	}
}

// A layerwise load with a row size starts with one layer. Each step is as large as all earlier
// steps together, up to the size of a row.
func TestLayersComeTogetherAsRows(t *testing.T) {
	t.Parallel()
	const shards = 14
	for row, want := range map[int64][]int{ // layers of a row; layers of each expected part
		0: {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
		1: {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
		2: {1, 1, 2, 2, 2, 2, 2, 2},
		4: {1, 1, 2, 4, 4, 2},
		9: {1, 1, 2, 4, 6},
	} {
		var shard int64
		o := rigOptions{shards: shards, planeBytes: leafy, sumEvery: 1}
		o.tune = func(c *store.Config) {
			shard = c.Formats[0].Layout.ShardBytes(0)
			c.PartBytes, c.RowBytes = shard, row*shard
		}
		r, rec, ns := recorded(t, o, 2)
		rec.batches = nil
		for i, err := range r.load(store.LoadOptions{Layerwise: true}, ns...) {
			if err != nil {
				t.Errorf("rows of %d: block %d: %v", row, i, err)
			}
		}
		var got []int
		next := 0
		for _, batch := range rec.batches {
			for _, g := range batch {
				n, first := int64(0), r.layerOf(g.Planes[0])
				for _, p := range g.Planes {
					n += p.Bytes
				}
				if first != next {
					t.Errorf("rows of %d: layer %d where %d is next", row, first, next)
				}
				got, next = append(got, int(n/shard)), next+int(n/shard)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("rows of %d layers: parts of %v, want %v", row, got, want)
		}
	}
}
