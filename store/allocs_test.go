package store_test

import (
	"encoding/binary"
	"testing"

	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
)

// Allocations of a task and of the simulated device must grow with batches and blocks, but not with
// planes. The limit is a quarter of one allocation for each plane of each block. The test counts
// the allocations of all goroutines, so it does not run in parallel.
func TestTasksAllocateNothingForAnExtent(t *testing.T) {
	const blocks, shards, planes = 64, 32, 2
	for _, path := range []stream.Path{stream.PathKernel, stream.PathCopyEngine} { // the stream computes the checksums, or the CPU does
		r := newRig(t, rigOptions{slots: 2 * blocks, pages: blocks, shards: shards, planes: planes, planeBytes: leafy / 2, path: path})
		ns := make([]int, blocks)
		for i := range ns {
			ns[i] = i
		}
		r.dump(ns...)
		refs, ctx := r.refs(0, ns...), r.ctx()
		fresh := 0
		for _, c := range []struct {
			name string
			do   func() error
		}{
			{"load", func() error {
				l, err := r.st.Load(ctx, nil, r.pages, refs, store.LoadOptions{})
				if err != nil {
					return err
				}
				return l.Wait(ctx)
			}},
			{"layerwise load", func() error {
				l, err := r.st.Load(ctx, nil, r.pages, refs, store.LoadOptions{Layerwise: true})
				if err != nil {
					return err
				}
				return l.Wait(ctx)
			}},
			{"dump", func() error {
				other := append([]store.Ref(nil), refs...)
				for i := range other {
					fresh++
					binary.LittleEndian.PutUint64(other[i].Key[:], uint64(fresh))
				}
				d, err := r.st.Dump(ctx, r.pages, other, store.DumpOptions{})
				if err != nil {
					return err
				}
				return d.Durable(ctx)
			}},
		} {
			n := testing.AllocsPerRun(3, func() { r.must(c.do()) })
			if most := float64(blocks * shards * planes / 4); n > most {
				t.Errorf("%s by %v: %v allocations for %d blocks of %d planes, want %v at most", c.name, path, n, blocks, shards*planes, most)
			} else {
				t.Logf("%s by %v: %.2f allocations a block, %.3f an extent", c.name, path, n/blocks, n/blocks/shards/planes)
			}
		}
	}
}
