package log_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// Blocks of one shard, put 32 at a time, and read one by one in any order.
func BenchmarkLog(b *testing.B) {
	for _, bytes := range []int64{4 << 10, 64 << 10, 2 << 20} {
		l, err := block.NewLayout([]int64{bytes})
		if err != nil {
			b.Fatal(err)
		}
		f := block.Format{Layout: l, Identity: block.Digest{1}}
		const many = 32
		open := func(b *testing.B) *log.Tier {
			b.Helper()
			tr, err := log.Open(b.Context(), log.Config{Dir: b.TempDir(), Formats: block.Formats{f}, MaxBytes: 2 << 30})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() {
				if err := tr.Close(context.WithoutCancel(b.Context())); err != nil {
					b.Error(err)
				}
			})
			return tr
		}
		keys, srcs, errs := make([]block.Key, many), make([]mem.Extent, many), make([]error, many)
		for i := range srcs {
			srcs[i] = tiertest.Buffer(b, l.ImageBytes())
		}
		putSome := func(b *testing.B, tr *log.Tier, from int) {
			b.Helper()
			b.StopTimer()
			for i := range keys {
				keys[i] = tiertest.Key(from + i)
				if err := f.Seal(srcs[i].Bytes(), keys[i]); err != nil {
					b.Fatal(err)
				}
			}
			b.StartTimer()
			tr.PutMany(b.Context(), keys, srcs, errs)
			for _, err := range errs {
				if err != nil {
					b.Fatal(err)
				}
			}
		}
		b.Run(fmt.Sprintf("put/%dKiB", bytes>>10), func(b *testing.B) {
			tr := open(b)
			b.SetBytes(bytes * many)
			for n := 0; b.Loop(); n++ {
				putSome(b, tr, n*many)
			}
		})
		b.Run(fmt.Sprintf("get/%dKiB", bytes>>10), func(b *testing.B) {
			tr := open(b)
			n := int(min(8192, 256<<20/bytes)) / many * many
			for from := 0; from < n; from += many {
				putSome(b, tr, from)
			}
			rng := rand.New(rand.NewPCG(1, 2))
			b.SetBytes(bytes)
			for b.Loop() {
				if err := tr.Get(b.Context(), tiertest.Key(rng.IntN(n)), srcs[0]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
