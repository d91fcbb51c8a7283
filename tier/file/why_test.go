package file_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
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
	f := tiertest.NewFormat(t)
	const most = 12
	c := file.Config{Dirs: []string{t.TempDir()}, Formats: block.Formats{f}, MaxBytes: most * f.Layout.ImageBytes()}
	dir := c.Dirs[0]
	keysOf := func(keys []block.Key) func(*file.Marker) ([]block.Key, error) {
		return func(*file.Marker) ([]block.Key, error) { return keys, nil }
	}
	tiertest.RunWhy(t, tiertest.WhyConfig{
		Format: f, Keys: 2 * most,
		Open: func(t *testing.T) tiertest.WhyTier {
			tr, err := file.Open(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			return tr
		},
		Offline: func(ctx context.Context, keys []block.Key) ([]tier.Explanation, error) {
			a, err := file.Why(ctx, dir, keysOf(keys))
			if a.Damaged != 0 {
				t.Errorf("%d damaged records", a.Damaged)
			}
			return a.Blocks, err
		},
		Collect: func(ctx context.Context, bytes int64) error {
			_, err := file.GC(ctx, dir, bytes, nil)
			return err
		},
		Remove: func(ctx context.Context, keys []block.Key) error {
			sel := file.Selection{Keys: keys}
			if keys == nil {
				sel.Before = time.Unix(1000, 0)
			}
			_, err := file.Remove(ctx, dir, sel)
			return err
		},
		Age: func(t *testing.T, keys []block.Key) {
			for _, key := range keys {
				if err := os.Chtimes(path(dir, key), time.Time{}, time.Unix(0, 0)); err != nil {
					t.Fatal(err)
				}
			}
		},
		Corrupt: func(t *testing.T, key block.Key) { flip(t, path(dir, key), f.Layout.ShardOff(1)) },
	}, func(tr tiertest.WhyTier, keys []block.Key) error {
		files, ok := tr.(*file.Tier)
		if !ok {
			return errors.New("not a tier of files")
		}
		_, err := files.Remove(t.Context(), keys)
		return err
	}, seed)
}
