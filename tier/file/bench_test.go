package file_test

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/tiertest"
)

func benchConfig(b *testing.B) file.Config {
	b.Helper()
	l, err := block.NewLayout([]int64{8192})
	if err != nil {
		b.Fatal(err)
	}
	return file.Config{Dirs: []string{b.TempDir()}, Formats: block.Formats{{Layout: l, Identity: block.Digest{1}}}}
}

func benchTier(b *testing.B) (*file.Tier, block.Format, mem.Extent) {
	b.Helper()
	c := benchConfig(b)
	tr, err := file.Open(b.Context(), c)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := tr.Close(context.WithoutCancel(b.Context())); err != nil {
			b.Error(err)
		}
	})
	return tr, c.Formats[0], tiertest.Buffer(b, c.Formats[0].Layout.ImageBytes())
}

func benchKey(i int) (k block.Key) {
	binary.BigEndian.PutUint64(k[:], uint64(i)*0x9e3779b97f4a7c15)
	return k
}

func BenchmarkPut(b *testing.B) {
	tr, f, e := benchTier(b)
	b.ReportAllocs()
	b.SetBytes(e.Len)
	for i := 0; b.Loop(); i++ {
		if err := f.Seal(e.Bytes(), benchKey(i)); err != nil {
			b.Fatal(err)
		}
		if err := tr.Put(b.Context(), benchKey(i), e); err != nil {
			b.Fatal(err)
		}
	}
}

func benchFilled(b *testing.B, op func(tr *file.Tier, e mem.Extent, key block.Key) error) {
	b.Helper()
	const n = 1000
	tr, f, e := benchTier(b)
	for i := range n {
		if err := f.Seal(e.Bytes(), benchKey(i)); err != nil {
			b.Fatal(err)
		}
		if err := tr.Put(b.Context(), benchKey(i), e); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := op(tr, e, benchKey(i%n)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGet(b *testing.B) {
	benchFilled(b, func(tr *file.Tier, e mem.Extent, key block.Key) error { return tr.Get(b.Context(), key, e) })
}

func BenchmarkLookup(b *testing.B) {
	states := make([]tier.State, 1)
	benchFilled(b, func(tr *file.Tier, _ mem.Extent, key block.Key) error {
		return tr.Lookup(b.Context(), []block.Key{key}, states)
	})
}
