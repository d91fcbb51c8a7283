package store_test

import (
	"encoding/binary"
	"runtime"
	"testing"

	"github.com/kvlane/kvlane/store"
)

// benchBlocks is how many blocks a task of the benchmarks has; each stands for 64 planes.
const benchBlocks = 64

func benchRig(b *testing.B) (*rig, []int) {
	b.Helper()
	r := newRig(b, rigOptions{slots: 2 * benchBlocks, pages: benchBlocks, shards: 32, planes: 2, planeBytes: 4096})
	ns := make([]int, benchBlocks)
	for i := range ns {
		ns[i] = i
		r.fill(uint32(i), i)
	}
	return r, ns
}

// perBlock reports allocations and bytes of the Go heap for each block, and extent (a plane of a block), of the timed loop.
func perBlock(b *testing.B, r *rig, before *runtime.MemStats) {
	b.Helper()
	var after runtime.MemStats
	runtime.ReadMemStats(&after)
	blocks := float64(b.N * benchBlocks)
	allocs := float64(after.Mallocs - before.Mallocs)
	b.ReportMetric(allocs/blocks, "allocs/block")
	b.ReportMetric(allocs/blocks/float64(r.o.shards*r.o.planes), "allocs/extent")
	b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/blocks, "heap-B/block")
}

func BenchmarkLoadFromCache(b *testing.B) {
	for _, layerwise := range []bool{false, true} {
		b.Run(map[bool]string{false: "whole", true: "layerwise"}[layerwise], func(b *testing.B) {
			r, ns := benchRig(b)
			r.dump(ns...)
			refs := r.refs(0, ns...)
			ctx := r.ctx()
			load := func() {
				t, err := r.st.Load(ctx, nil, r.pages, refs, store.LoadOptions{Layerwise: layerwise})
				if err != nil {
					b.Fatal(err)
				}
				if err := t.Wait(ctx); err != nil {
					b.Fatal(err)
				}
			}
			load()
			b.SetBytes(r.blockBytes() * benchBlocks)
			var before runtime.MemStats
			runtime.ReadMemStats(&before)
			for b.Loop() {
				load()
			}
			perBlock(b, r, &before)
		})
	}
}

func BenchmarkDumpToCache(b *testing.B) {
	r, ns := benchRig(b)
	ctx := r.ctx()
	refs := r.refs(0, ns...)
	n := 0
	dump := func() {
		for i := range refs { // blocks not seen before, so that none is skipped
			n++
			binary.LittleEndian.PutUint64(refs[i].Key[:], uint64(n))
		}
		t, err := r.st.Dump(ctx, r.pages, refs, store.DumpOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if err := t.Durable(ctx); err != nil {
			b.Fatal(err)
		}
	}
	for range 4 {
		dump()
	}
	b.SetBytes(r.blockBytes() * benchBlocks)
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	for b.Loop() {
		dump()
	}
	perBlock(b, r, &before)
}
