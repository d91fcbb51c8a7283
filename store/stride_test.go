package store_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store"
)

const followedShards = 14

// strideOptions returns options for blocks of 14 layers, in rows of row layers. A load of two or
// more blocks is copied in strides that start with four single layers.
func strideOptions(row int64) rigOptions {
	o := rigOptions{shards: followedShards, planeBytes: leafy, sumEvery: 1}
	o.tune = func(c *store.Config) {
		shard := c.Formats[0].Layout.ShardBytes(0)
		c.PartBytes, c.RowBytes = shard/2, row*shard
	}
	return o
}

// strides returns the number of layers in each part of each recorded batch, and clears the record.
func (s *recorder) strides(r *rig) (layers [][]int, awaited []bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, batch := range s.batches {
		var n []int
		for _, g := range batch {
			n = append(n, len(g.Planes)/len(r.pages.Shards[0]))
		}
		layers = append(layers, n)
	}
	awaited = s.awaited
	s.batches, s.awaited = nil, nil
	return layers, awaited
}

// A load that streams wait for copies single layers as awaited batches until it is a row ahead of
// the streams. Then it copies whole rows.
func TestLoadFollowsStreams(t *testing.T) {
	t.Parallel()
	ones := func(n int) []int { return slices.Repeat([]int{1}, n) }
	for _, c := range []struct {
		what    string
		row     int64
		wanted  int // number of shards that streams wait for, before and after the first layers
		layers  [][]int
		awaited []bool
	}{
		{"no stream has come", 4, 0, [][]int{ones(4), {4}, {4}, {2}}, []bool{true, false, false, false}},
		{"no stream has come, rows of two", 2, 0, [][]int{ones(2), {2}, {2}, {2}, {2}, {2}, {2}}, []bool{true, false, false, false, false, false, false}},
		{"a stream waits for layer 3", 4, 4, [][]int{ones(4), ones(4), {4}, {2}}, []bool{true, true, false, false}},
		{"a stream waits for all", 4, followedShards, [][]int{ones(4), ones(4), ones(4), ones(2)}, []bool{true, true, true, true}},
		{"harm has no weight", 0, 0, [][]int{ones(followedShards)}, []bool{false}},
	} {
		r, rec, ns := recorded(t, strideOptions(c.row), 2)
		p := new(fakeProgress)
		p.wanted.Store(int64(c.wanted))
		rec.strides(r)
		for i, err := range r.load(store.LoadOptions{Layerwise: true, Progress: p}, ns...) {
			if err != nil {
				t.Errorf("%s: block %d: %v", c.what, i, err)
			}
		}
		layers, awaited := rec.strides(r)
		if !slices.EqualFunc(layers, c.layers, slices.Equal) || !slices.Equal(awaited, c.awaited) {
			t.Errorf("%s: batches of %v, awaited %v; want %v, %v", c.what, layers, awaited, c.layers, c.awaited)
		}
	}
}

// A load that no stream waits for is one batch that is not awaited, and so is a short load.
func TestOnlyLongLoadsFollow(t *testing.T) {
	t.Parallel()
	r, rec, ns := recorded(t, strideOptions(4), 2)
	for what, load := range map[string]func() []error{
		"no stream waits": func() []error { return r.load(store.LoadOptions{Layerwise: true}, ns...) },
		"a block":         func() []error { return r.load(store.LoadOptions{Layerwise: true, Progress: new(fakeProgress)}, ns[0]) },
		"whole blocks":    func() []error { return r.load(store.LoadOptions{Progress: new(fakeProgress)}, ns...) },
	} {
		rec.strides(r)
		r.must(errors.Join(load()...))
		if layers, awaited := rec.strides(r); len(layers) != 1 || awaited[0] {
			t.Errorf("%s: batches of %v, awaited %v", what, layers, awaited)
		}
	}
}

// A load that is canceled between two strides copies no more. Each of its blocks has a result and
// holds no slot.
func TestLoadCanceledBetweenStrides(t *testing.T) {
	t.Parallel()
	for n := 3; n <= 6; n++ { // the first two batches may be submitted before Load returns
		r, rec, ns := recorded(t, strideOptions(4), 12)
		rec.strides(r)
		started := make(chan *store.LoadTask, 1)
		rec.before = func(k int) {
			if k == n {
				(<-started).Cancel()
			}
		}
		task, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(0, ns...), store.LoadOptions{Layerwise: true, Progress: new(fakeProgress)})
		r.must(err)
		started <- task
		for i, err := range r.loaded(task) {
			if !errors.Is(err, errdefs.ErrCanceled) {
				t.Errorf("batch %d: block %d: %v", n, i, err)
			}
		}
		if layers, _ := rec.strides(r); len(layers) != n {
			t.Errorf("canceled with batch %d, and %d were submitted", n, len(layers))
		}
		if pins := r.cache.Stats().Retained; pins != 0 {
			t.Errorf("batch %d: %d pins are left", n, pins)
		}
		rec.before = nil
		r.mustLoad(ns...)
	}
}

// While a load in strides appends parts to a slice, check jobs verify earlier parts. The count of
// pending jobs must survive a reallocation of that slice, or the load hangs. The race detector
// reports the access that would lose the count.
func TestLoadPlansPartsWhileOthersAreChecked(t *testing.T) {
	t.Parallel()
	o := strideOptions(1)
	o.sumEvery, o.shards = noSums, 60
	for range 8 { // each load has its own store, whose slice of parts has never grown
		r, _, ns := recorded(t, o, 2)
		p := new(fakeProgress)
		p.wanted.Store(60)
		r.must(errors.Join(r.load(store.LoadOptions{Layerwise: true, Progress: p}, ns...)...))
	}
}
