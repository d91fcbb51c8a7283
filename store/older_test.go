package store_test

import (
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/store"
)

// sumAlgo returns the checksum algorithm of the cached copy of block n.
func (r *rig) sumAlgo(n int) block.SumAlgo {
	r.tb.Helper()
	sl, err := r.cache.Open(r.ctx(), r.key(n))
	r.must(err)
	defer sl.Release()
	h, err := block.DecodeHeader(sl.Extent().Bytes())
	r.must(err)
	return h.SumAlgo
}

// A directory may hold blocks with checksums of both algorithms. The store loads and verifies them,
// from files and from the cache, even in one batch.
func TestDirectoryOfBothAlgorithms(t *testing.T) {
	t.Parallel()
	for _, first := range []block.SumAlgo{block.SumXXH3, block.SumTree} {
		for _, layerwise := range []bool{false, true} {
			writes := first
			r := newRig(t, rigOptions{planeBytes: leafy, sumEvery: 1, dirs: []string{t.TempDir()}, tune: func(c *store.Config) {
				c.Formats[0].Sum = writes
			}})
			r.dump(1, 2)
			r.closeStore()
			writes = block.SumXXH3 + block.SumTree - first
			r.openStore()
			o := store.LoadOptions{Layerwise: layerwise}
			load := func() {
				t.Helper()
				for _, err := range r.load(o, 1, 2, 3, 4) {
					r.must(err)
				}
			}
			r.dump(3, 4)
			load() // from files and from the cache
			load() // from the cache
			if a, b := r.sumAlgo(1), r.sumAlgo(3); a != first || b != writes {
				t.Fatalf("the blocks' checksums are %v and %v: the test does not test", a, b)
			}
			st := r.st.Stats()
			wantOnWay := int64(4) // the blocks with tree checksums, loaded twice
			if writes == block.SumXXH3 {
				wantOnWay = 0 // a store that writes XXH3 checksums requests none from streams
			}
			if st.VerifiedOnWay != wantOnWay || st.VerifiedOnWay+st.VerifiedByCPU != 8 || st.BadCopies != 0 {
				t.Errorf("%d blocks were verified on their way and %d by the CPU, want %d of 8; %d bad copies", st.VerifiedOnWay, st.VerifiedByCPU, wantOnWay, st.BadCopies)
			}
			for _, n := range []int{1, 3} {
				r.flip(n, r.format.Layout.ShardOff(1))
			}
			load()
			if st := r.st.Stats(); st.Mismatches != 2 || st.Refills != 2 {
				t.Fatalf("%d mismatches, %d refills", st.Mismatches, st.Refills)
			}
			r.closeStore()
			writes = first
			r.openStore()
			load() // all blocks from files
		}
	}
}
