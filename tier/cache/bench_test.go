package cache_test

import (
	"sync/atomic"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/cache"
	"github.com/kvlane/kvlane/tier/tiertest"
)

func benchTier(b *testing.B, n int) (*cache.Tier, []block.Key) {
	b.Helper()
	l, err := block.NewLayout([]int64{64})
	if err != nil {
		b.Fatal(err)
	}
	f := block.Format{Layout: l}
	c := open(b, f, n)
	b.Cleanup(func() { closeTier(b, c) })
	ks := make([]block.Key, n)
	for i := range ks {
		ks[i] = tiertest.Key(i)
		store(b, c, f, i).Release()
	}
	return c, ks
}

func BenchmarkOpenRelease(b *testing.B) {
	c, ks := benchTier(b, 1024)
	ctx := b.Context()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		slot, err := c.Open(ctx, ks[i%len(ks)])
		if err != nil {
			b.Fatal(err)
		}
		slot.Release()
		i++
	}
}

func BenchmarkOpenReleaseParallel(b *testing.B) {
	c, ks := benchTier(b, 1024)
	ctx := b.Context()
	b.ReportAllocs()
	var worker atomic.Int64
	b.RunParallel(func(pb *testing.PB) {
		i := int(worker.Add(1)) * 500
		for pb.Next() {
			slot, err := c.Open(ctx, ks[i%len(ks)])
			if err != nil {
				b.Error(err)
				return
			}
			slot.Release()
			i++
		}
	})
}

func BenchmarkRetainRelease(b *testing.B) {
	c, ks := benchTier(b, 1024)
	ctx := b.Context()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		k := ks[i%len(ks):][:1]
		if n, err := c.Retain(ctx, k); n != 1 || err != nil {
			b.Fatal(n, err)
		}
		c.Release(k)
		i++
	}
}

// Every reservation evicts a block.
func BenchmarkReservePublishEvict(b *testing.B) {
	c, _ := benchTier(b, 1024)
	ctx := b.Context()
	b.ReportAllocs()
	i := 1024
	for b.Loop() {
		fill, err := c.Reserve(ctx, tiertest.Key(i))
		if err != nil {
			b.Fatal(err)
		}
		slot, err := fill.Publish()
		if err != nil {
			b.Fatal(err)
		}
		slot.Release()
		i++
	}
}

func BenchmarkLookup(b *testing.B) {
	c, ks := benchTier(b, 1024)
	states := make([]tier.State, len(ks))
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Lookup(ctx, ks, states); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(ks)), "ns/key")
}
