package acceptance_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// BenchmarkHostLoad loads 64 verified blocks of 256 KiB from the cache into host memory, and copies
// the same number of bytes with one plain copy. It reports medians.
func BenchmarkHostLoad(b *testing.B) {
	const blocks = 64
	g := block.Geometry{Model: "bench", Layers: 32, KVHeads: 1, HeadSize: 128, DType: "bfloat16", BlockTokens: 16, TPSize: 1}
	layout, err := g.Layout()
	if err != nil {
		b.Fatal(err)
	}
	e, err := kvlane.Open(b.Context(), kvlane.Config{
		Model: g, Device: kvlane.DeviceConfig{Driver: kvlane.Host}, Store: kvlane.StoreConfig{CacheBytes: 2 * blocks * layout.ImageBytes()},
	})
	if err != nil {
		b.Fatal(err)
	}
	m := kvlane.CacheMemory{Pages: blocks, PageBytes: g.PlaneBytes()}
	total := int64(blocks*g.Layers*g.PlanesPerLayer()) * m.PageBytes
	kv, err := hostmem.Alloc(2 * total)
	if err != nil {
		b.Fatal(err)
	}
	for i := range kv {
		kv[i] = byte(i)
	}
	for p := range g.Layers * g.PlanesPerLayer() {
		m.Planes = append(m.Planes, mem.DevAddr(hostmem.Addr(kv))+mem.DevAddr(int64(p)*blocks*m.PageBytes))
	}
	cache, err := e.RegisterCache(m)
	if err != nil {
		b.Fatal(err)
	}
	var keys []kvlane.Key
	var refs []kvlane.Ref
	for i := range blocks {
		keys = append(keys, e.Key(fmt.Appendf(nil, "block %d", i)))
		refs = append(refs, kvlane.Ref{Key: keys[i], Page: uint32(i)})
	}
	dump, err := e.Dump(b.Context(), cache, refs, kvlane.DumpOptions{})
	if err == nil {
		err = dump.Durable(b.Context())
	}
	if err != nil {
		b.Fatal(err)
	}
	var loads, copies []time.Duration
	for b.Loop() { // alternate, so that other load affects both equally
		begun := time.Now()
		copy(kv[:total], kv[total:])
		copied := time.Now()
		lease, err := e.LeasePrefix(b.Context(), keys, time.Minute)
		if err != nil || lease.Len() != blocks {
			b.Fatal(err)
		}
		load, err := e.Load(b.Context(), lease, cache, refs, kvlane.LoadOptions{})
		if err == nil {
			err = load.Wait(b.Context())
		}
		if err != nil {
			b.Fatal(err)
		}
		lease.Release()
		copies, loads = append(copies, copied.Sub(begun)), append(loads, time.Since(copied))
	}
	slices.Sort(copies)
	slices.Sort(loads)
	copied, loaded := copies[len(copies)/2].Seconds(), loads[len(loads)/2].Seconds()
	b.ReportMetric(float64(total)/loaded/1e9, "load-GB/s")
	b.ReportMetric(float64(total)/copied/1e9, "copy-GB/s")
	b.ReportMetric(copied/loaded, "load/copy")
	if err := cache.Close(b.Context()); err != nil {
		b.Error(err)
	}
	if err := e.Close(b.Context()); err != nil {
		b.Error(err)
	}
	if err := hostmem.Free(kv); err != nil {
		b.Error(err)
	}
}
