package log_test

import (
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

func TestWhyModel(t *testing.T) {
	seeds := uint64(3)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) { runWhy(t, seed) })
	}
}

func runWhy(t *testing.T, seed uint64) {
	t.Helper()
	f := bigFormat(t)
	const most = 16 * segmentBytes / (72 << 10)
	c := log.Config{Dir: t.TempDir(), Formats: block.Formats{f}, MaxBytes: 16 * segmentBytes, SegmentBytes: segmentBytes}
	dir := c.Dir
	keysOf := func(keys []block.Key) func(*blockdir.Marker) ([]block.Key, error) {
		return func(*blockdir.Marker) ([]block.Key, error) { return keys, nil }
	}
	tiertest.RunWhy(t, tiertest.WhyConfig{
		Format: f, Keys: 2 * most,
		Open: func(t *testing.T) tiertest.WhyTier {
			tr, err := log.Open(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			return tr
		},
		Offline: func(ctx context.Context, keys []block.Key) ([]tier.Explanation, error) {
			a, err := log.Why(ctx, dir, keysOf(keys))
			if a.Damaged != 0 {
				t.Errorf("%d damaged records", a.Damaged)
			}
			return a.Blocks, err
		},
		Collect: func(ctx context.Context, bytes int64) error {
			_, err := log.GC(ctx, dir, bytes, nil)
			return err
		},
		Remove: func(ctx context.Context, keys []block.Key) error {
			sel := log.Selection{Keys: keys}
			if keys == nil {
				sel.Before = time.Unix(1000, 0)
			}
			_, err := log.Remove(ctx, dir, sel)
			return err
		},
		Age: func(t *testing.T, keys []block.Key) {
			if len(keys) == 0 {
				return
			}
			for _, name := range segmentFiles(t, dir) {
				if err := os.Chtimes(name, time.Time{}, time.Unix(0, 0)); err != nil {
					t.Fatal(err)
				}
			}
		},
		Corrupt: func(t *testing.T, key block.Key) { damage(t, dir, f, key) },
	}, func(tr tiertest.WhyTier, keys []block.Key) error {
		l, ok := tr.(*log.Tier)
		if !ok {
			t.Fatalf("the tier is a %T", tr)
		}
		_, err := l.Remove(t.Context(), keys)
		return err
	}, seed)
}
