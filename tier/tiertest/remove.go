package tiertest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// RemoveDuringUse puts, retains and reads blocks in several goroutines while another removes them,
// until ctx ends. It fails if a read returns wrong bytes, or if a retained block is missing. remove
// returns the number of removed blocks, and no error for blocks in use.
func RemoveDuringUse(ctx context.Context, t *testing.T, tr tier.Tier, f block.Format, remove func(ctx context.Context, keys []block.Key) (int, error)) {
	t.Helper()
	const some = 16
	var puts, reads, removed atomic.Int64
	var wg sync.WaitGroup
	for n := range 4 {
		rng := rand.New(rand.NewPCG(uint64(n), 1))
		dst := Buffer(t, f.Layout.ImageBytes())
		src := Buffer(t, f.Layout.ImageBytes())
		wg.Go(func() {
			for ctx.Err() == nil {
				key := Key(rng.IntN(some))
				Seal(t, f, src.Bytes(), key, 0)
				if err := tr.Put(context.WithoutCancel(ctx), key, src); err != nil {
					t.Errorf("put: %v", err)
					return
				}
				puts.Add(1)
				key = Key(rng.IntN(some))
				kept, err := tr.Retain(context.WithoutCancel(ctx), []block.Key{key})
				if err != nil {
					t.Errorf("retain: %v", err)
				}
				err = tr.Get(context.WithoutCancel(ctx), key, dst)
				if err == nil {
					reads.Add(1)
					err = Check(f, dst.Bytes(), key, 0)
				}
				if err != nil && (kept == 1 || !errors.Is(err, errdefs.ErrNotFound)) {
					t.Errorf("read a block, %d retained: %v", kept, err)
				}
				if kept == 1 {
					tr.Release([]block.Key{key})
				}
			}
		})
	}
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(9, 1))
		for ctx.Err() == nil {
			n, err := remove(context.WithoutCancel(ctx), []block.Key{Key(rng.IntN(some)), Key(rng.IntN(some))})
			if err != nil {
				t.Errorf("remove: %v", err)
				return
			}
			removed.Add(int64(n))
		}
	})
	wg.Wait()
	if puts.Load() < 10 || reads.Load() < 10 || removed.Load() < 10 {
		t.Errorf("%d puts, %d reads, %d removals: the test does not test", puts.Load(), reads.Load(), removed.Load())
	}
}
