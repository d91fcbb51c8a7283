package store_test

import (
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/tier"
)

// Several dumps form one prompt if each names the block before its first, or if one lease covers
// all blocks. The end of a prompt is evicted first.
func TestDumpsInPiecesMakeOnePrompt(t *testing.T) {
	for _, groups := range []int{1, 2} {
		for _, leased := range []bool{false, true} {
			r := newRig(t, rigOptions{groups: groups, slots: 16, pages: 16})
			var first, second []int
			for i := range 12 {
				first, second = append(first, i), append(second, 100+i)
			}
			dump := func(ns []int, before block.Key) {
				t.Helper()
				refs := r.refs(0, ns...)
				for i, n := range ns {
					r.fill(refs[i].Page, n)
				}
				d, err := r.st.Dump(r.ctx(), r.pages, refs, store.DumpOptions{Before: before})
				r.must(err)
				r.must(d.Durable(r.ctx()))
			}
			if leased {
				l, err := r.st.LeasePrefix(r.ctx(), r.keys(first...), 0)
				r.must(err)
				l.Release()
			}
			for at := 0; at < len(first); at += 4 {
				before := block.Key{}
				if at > 0 && !leased {
					before = r.key(first[at-1])
				}
				dump(first[at:at+4], before)
			}
			dump(second, block.Key{})
			for i, h := range r.hits(first...) {
				if there := h.State == tier.Ready; there != (i < 4) {
					t.Errorf("%d page groups, leased %t: block %d is cached: %t", groups, leased, i, there)
				}
			}
		}
	}
}

// Loads without a lease form one prompt if each names the block before its first.
func TestLoadsInPiecesMakeOnePrompt(t *testing.T) {
	r := newRig(t, rigOptions{slots: 16, pages: 16, dirs: []string{t.TempDir()}})
	var all, others []int
	for i := range 12 {
		all, others = append(all, i), append(others, 100+i)
	}
	r.dump(all...)
	r.closeStore()
	r.openStore() // the cache is empty
	load := func(ns []int, before block.Key) {
		t.Helper()
		for i, err := range r.load(store.LoadOptions{Before: before}, ns...) {
			if err != nil {
				t.Fatalf("block %d: %v", ns[i], err)
			}
		}
	}
	load(all[:6], block.Key{})
	load(all[6:], r.key(5))
	r.dump(others...)
	for i, h := range r.hits(all...) {
		if inCache := h.Tier == "cache"; inCache != (i < 4) {
			t.Errorf("block %d is in %q", i, h.Tier)
		}
	}
}
