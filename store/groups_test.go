package store_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
)

// TestModelOfGroups runs the model test with several page groups of different geometry. The planes
// of all groups use the same memory, and each task has blocks of all groups.
func TestModelOfGroups(t *testing.T) {
	t.Parallel()
	runModels(t, []modelConfig{
		{name: "two groups,cache-tiny", groups: 2, slots: 3, layerwise: true},
		{name: "two groups,cache,file,no leaves", groups: 2, dirs: 1, layerwise: true},
		{name: "two groups,device,cache-tiny,file,some sums", groups: 2, planeBytes: leafy, slots: 3, dirs: 1, sums: 2, layerwise: true},
		{name: "two groups,device,cache,wrong transfers", groups: 2, planeBytes: leafy, sums: 1, layerwise: true, corrupt: true},
		{name: "three groups,device,cache,two directories,planned paths", groups: 3, planeBytes: leafy, dirs: 2, layerwise: true, planned: true},
		{name: "three groups,cache-tiny,file,the stream's sums,faults", groups: 3, planeBytes: leafy, slots: 3, dirs: 1, faults: true, layerwise: true},
		{name: "always,two groups,cache,file,faults", policy: store.VerifyAlways, groups: 2, planeBytes: leafy, dirs: 1, faults: true, layerwise: true},
	})
}

// A layer in which the task has no blocks is complete as soon as the layers before it are.
func TestLayersThatNoBlockHas(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{groups: 2, shards: 5, planeBytes: leafy})
	r.dump(0, 2) // blocks of the first group, with layers 0, 2 and 4
	d, err := r.st.Dump(r.ctx(), r.pages, r.refs(0, 4), store.DumpOptions{Layerwise: true})
	r.must(err)
	for _, k := range []int{4, 1, 3, 0, 2} {
		r.must(d.SubmitShard(r.ctx(), k))
	}
	r.must(d.Durable(r.ctx()))
	unblock := make(chan struct{})
	r.closeStore()
	r.o.wrapLoad = func(st stream.Stream) stream.Stream { return &gated{st, unblock} }
	r.openStore()
	r.dump(1, 3)
	l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(4, 1, 3), store.LoadOptions{Layerwise: true})
	r.must(err)
	r.must(l.WaitShard(r.ctx(), 0))
	if !unresolved(l.Done()) {
		t.Error("the load ended before its copies began")
	}
	close(unblock)
	for k := range 5 {
		r.must(l.WaitShard(r.ctx(), k))
	}
	r.must(errors.Join(l.Wait(r.ctx()), r.checkPage(4, 1), r.checkPage(5, 3)))
	if err := l.WaitShard(r.ctx(), 5); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("a layer that the model lacks: %v", err)
	}
}

// gated is a stream that accepts batches only after unblock is closed.
type gated struct {
	stream.Stream
	unblock <-chan struct{}
}

func (g *gated) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	select {
	case <-g.unblock:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return g.Stream.Submit(ctx, b)
}

// One load reads blocks of each group, some from the cache and some from files.
func TestGroupsPartlyFromFiles(t *testing.T) {
	t.Parallel()
	for _, layerwise := range []bool{false, true} {
		r := newRig(t, rigOptions{groups: 3, shards: 6, planeBytes: leafy, dirs: []string{t.TempDir()}})
		all := []int{0, 1, 2, 3, 4, 5}
		r.dump(all...)
		for _, n := range []int{0, 4, 5} {
			r.must(r.cache.Delete(r.ctx(), r.key(n)))
		}
		for _, err := range r.load(store.LoadOptions{Layerwise: layerwise}, all...) {
			r.must(err)
		}
		st := r.st.Stats()
		if st.Tiers[0].Hits != 3 || st.Tiers[1].Hits != 3 {
			t.Errorf("layerwise %v: hits in %+v", layerwise, st.Tiers)
		}
	}
}

func TestLayersOfGroupsAreChecked(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{groups: 2})
	for name, layers := range map[string][][]int{
		"none":          nil,
		"of one group":  {{0, 1, 2}},
		"too few":       {{0, 2}, {}},
		"missing":       {{0, 3}, {1}},
		"overlapping":   {{0, 1}, {1}},
		"negative":      {{-1, 0}, {1}},
		"not ascending": {{2, 0}, {1}},
	} {
		if err := store.ValidateLayers(r.groups, layers); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		c := store.Config{Formats: r.groups, Layers: layers, Cache: r.cache, OpenLoad: r.opener(nil), OpenDump: r.opener(nil)}
		if s, err := store.Open(c); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v", name, errors.Join(err, s.Close(r.ctx())))
		}
	}
	key := r.key(0)
	key[block.KeyBytes-1]++
	ref := []store.Ref{{Key: key}}
	if _, err := r.st.Load(r.ctx(), nil, r.pages, ref, store.LoadOptions{}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("load of a key of no group: %v", err)
	}
	if _, err := r.st.Dump(r.ctx(), r.pages, ref, store.DumpOptions{}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("dump of a key of no group: %v", err)
	}
}

// makeGroup defines the format of page group g.
func (r *rig) makeGroup(g int) {
	o := &r.o
	var layers []int
	var shards []int64
	for k := g; k < o.shards; k += o.groups {
		layers, shards = append(layers, k), append(shards, int64(o.planes)*r.planeBytes(g))
	}
	layout, err := block.NewLayout(shards)
	r.must(err)
	id := block.Identity{
		Model: "test", Revision: "1", DType: "f16", Layout: "kv", LayerFirst: 0, LayerEnd: o.shards, HeadFirst: 0, HeadEnd: 1,
		HeadSize: int(r.planeBytes(g)) / 32, BlockTokens: 16,
	}
	if o.groups > 1 {
		id.Group, id.Layers = fmt.Sprint("group", g), block.FormatLayers(layers)
	}
	r.ids, r.layers = append(r.ids, id), append(r.layers, layers)
	r.groups = append(r.groups, block.Format{Layout: layout, Identity: id.Digest()})
}
