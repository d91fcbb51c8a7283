package store_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store"
)

const followedShards = 14

// followed returns options for blocks of 14 layers, of which row make a row. Loads of two or more
// blocks are copied in strides, of four single layers of two blocks.
func followed(row int64) rigOptions {
	o := rigOptions{shards: followedShards, planeBytes: leafy, sumEvery: 1}
	o.tune = func(c *store.Config) {
		shard := c.Formats[0].Layout.ShardBytes(0)
		c.PartBytes, c.RowBytes = shard/2, row*shard
	}
	return o
}

// strides returns the number of layers of the parts of each batch, and clears them.
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

// A load that streams wait for copies single layers, as awaited batches, until a row is ahead of
// the streams. Then it copies rows.
func TestLoadFollowsStreams(t *testing.T) {
	t.Parallel()
	ones := func(n int) []int { return slices.Repeat([]int{1}, n) }
	for _, c := range []struct {
		what    string
		row     int64
		wanted  int // shards that streams wait for, before and after
		layers  [][]int
		awaited []bool
	}{
		{"no stream has come", 4, 0, [][]int{ones(4), {4}, {4}, {2}}, []bool{true, false, false, false}},
		{"no stream has come, rows of two", 2, 0, [][]int{ones(2), {2}, {2}, {2}, {2}, {2}, {2}}, []bool{true, false, false, false, false, false, false}},
		{"a stream waits for layer 3", 4, 4, [][]int{ones(4), ones(4), {4}, {2}}, []bool{true, true, false, false}},
		{"a stream waits for all", 4, followedShards, [][]int{ones(4), ones(4), ones(4), ones(2)}, []bool{true, true, true, true}},
		{"harm has no weight", 0, 0, [][]int{ones(followedShards)}, []bool{false}},
	} {
		r, rec, ns := recorded(t, followed(c.row), 2)
		p := new(teller)
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

// A load without waiting streams and a short load are one batch that is not awaited.
func TestOnlyLongLoadsFollow(t *testing.T) {
	t.Parallel()
	r, rec, ns := recorded(t, followed(4), 2)
	for what, load := range map[string]func() []error{
		"nobody follows": func() []error { return r.load(store.LoadOptions{Layerwise: true}, ns...) },
		"a block":        func() []error { return r.load(store.LoadOptions{Layerwise: true, Progress: new(teller)}, ns[0]) },
		"whole blocks":   func() []error { return r.load(store.LoadOptions{Progress: new(teller)}, ns...) },
	} {
		rec.strides(r)
		r.must(errors.Join(load()...))
		if layers, awaited := rec.strides(r); len(layers) != 1 || awaited[0] {
			t.Errorf("%s: batches of %v, awaited %v", what, layers, awaited)
		}
	}
}

// A load that is canceled between two strides copies nothing more, and each block has its result
// and no slot.
func TestLoadCanceledBetweenStrides(t *testing.T) {
	t.Parallel()
	for n := 3; n <= 6; n++ { // the first two may be submitted before Load returns
		r, rec, ns := recorded(t, followed(4), 12)
		rec.strides(r)
		started := make(chan *store.LoadTask, 1)
		rec.before = func(k int) {
			if k == n {
				(<-started).Cancel()
			}
		}
		task, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(0, ns...), store.LoadOptions{Layerwise: true, Progress: new(teller)})
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

// A load in strides plans parts while check jobs verify earlier ones: no count of pending jobs may
// be lost when the slice of parts grows. A lost count makes the load hang. The race detector
// reports the access that loses it.
func TestLoadPlansPartsWhileOthersAreChecked(t *testing.T) {
	t.Parallel()
	o := followed(1)
	o.sumEvery, o.shards = noSums, 60
	for range 8 { // each with a store of its own, whose parts have never grown before
		r, _, ns := recorded(t, o, 2)
		p := new(teller)
		p.wanted.Store(60)
		r.must(errors.Join(r.load(store.LoadOptions{Layerwise: true, Progress: p}, ns...)...))
	}
}
