package log_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/faulty"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

const segmentBytes = 256 << 10

// bigFormat returns a format whose blocks get their own records.
func bigFormat(tb testing.TB) block.Format {
	tb.Helper()
	l, err := block.NewLayout([]int64{64 << 10, 5000})
	if err != nil {
		tb.Fatal(err)
	}
	return block.Format{Layout: l, Identity: block.Digest{7}}
}

func TestConformance(t *testing.T) {
	for _, policy := range []log.FsyncPolicy{log.FsyncInterval, log.FsyncAlways, log.FsyncNever} {
		t.Run(policy.String(), func(t *testing.T) {
			conform(t, tiertest.NewFormat(t), log.Config{Fsync: policy}, same)
		})
	}
	t.Run("blocks with records of their own", func(t *testing.T) {
		conform(t, bigFormat(t), log.Config{}, same)
	})
	t.Run("decorated", func(t *testing.T) {
		conform(t, tiertest.NewFormat(t), log.Config{}, func(tr tier.Tier) tier.Tier { return faulty.New(tr, nil, nil) })
	})
}

func same(tr tier.Tier) tier.Tier { return tr }

func conform(t *testing.T, f block.Format, c log.Config, wrap func(tier.Tier) tier.Tier) {
	t.Helper()
	configs := make(map[tier.Tier]log.Config) // for Reopen
	start := func(t *testing.T, c log.Config) tier.Tier {
		t.Helper()
		tr, err := log.Open(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		w := wrap(tr)
		configs[w] = c
		return w
	}
	tiertest.Run(t, tiertest.Config{
		Format: f,
		Open: func(t *testing.T, _ int) tier.Tier {
			c := c
			c.Dir, c.Formats, c.SegmentBytes = t.TempDir(), block.Formats{f}, segmentBytes
			return start(t, c)
		},
		Corrupt: func(t *testing.T, tr tier.Tier, key block.Key) {
			damage(t, configs[tr].Dir, f, key)
		},
		Reopen: func(t *testing.T, tr tier.Tier) tier.Tier {
			c := configs[tr]
			if err := tr.Close(context.WithoutCancel(t.Context())); err != nil {
				t.Fatal(err)
			}
			return start(t, c)
		},
	})
}

// damage flips a bit in every copy of a block in the segments.
func damage(t *testing.T, dir string, f block.Format, key block.Key) {
	t.Helper()
	image := tiertest.Buffer(t, f.Layout.ImageBytes()).Bytes()
	tiertest.Seal(t, f, image, key, 0)
	want := image[f.Layout.ShardOff(0):][:f.Layout.ShardBytes(0)]
	found := 0
	for _, name := range segmentFiles(t, dir) {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; at < len(b); {
			i := strings.Index(string(b[at:]), string(want))
			if i < 0 {
				break
			}
			flip(t, name, int64(at+i)+100)
			found++
			at += i + len(want)
		}
	}
	if found == 0 {
		t.Fatalf("no segment has block %s", key)
	}
}

func segmentFiles(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "seg-*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// flip flips a bit of a file in place.
func flip(t *testing.T, path string, off int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	_, err = f.ReadAt(b, off)
	b[0] ^= 4
	_, werr := f.WriteAt(b, off)
	if err = errors.Join(err, werr, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// config returns the configuration of a tier in a new directory, with small blocks and segments.
func config(t *testing.T) log.Config {
	t.Helper()
	return log.Config{Dir: t.TempDir(), Formats: block.Formats{tiertest.NewFormat(t)}, SegmentBytes: segmentBytes}
}

// open opens a tier and closes it when the test ends.
func open(t *testing.T, c log.Config) *log.Tier {
	t.Helper()
	tr, err := log.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeTier(t, tr) })
	return tr
}

func closeTier(t *testing.T, tr *log.Tier) {
	t.Helper()
	if err := tr.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

func image(t *testing.T, f block.Format, key block.Key) mem.Extent {
	t.Helper()
	e := tiertest.Buffer(t, f.Layout.ImageBytes())
	tiertest.Seal(t, f, e.Bytes(), key, 0)
	return e
}

func put(t *testing.T, tr *log.Tier, f block.Format, keys ...block.Key) {
	t.Helper()
	for _, key := range keys {
		if err := store(t.Context(), tr, key, image(t, f, key)); err != nil {
			t.Fatal(err)
		}
	}
}

// store stores a block. If the tier supports it, every other block is stored directly.
func store(ctx context.Context, tr *log.Tier, key block.Key, src mem.Extent) error {
	if tr.CanPutDirect() != nil || key[0]%2 == 0 {
		return tr.Put(ctx, key, src)
	}
	_, _, err := tr.PutDirect(ctx, key, src)
	if errors.Is(err, tier.ErrDirectFailed) && !errors.Is(err, errdefs.ErrNoSpace) {
		return tr.Put(ctx, key, src)
	}
	return err
}

func get(t *testing.T, tr *log.Tier, f block.Format, key block.Key) error {
	t.Helper()
	dst := tiertest.Buffer(t, f.Layout.ImageBytes())
	if err := tr.Get(t.Context(), key, dst); err != nil {
		return err
	}
	return tiertest.Check(f, dst.Bytes(), key, 0)
}

func keys(from, to int) []block.Key {
	var k []block.Key
	for i := from; i < to; i++ {
		k = append(k, tiertest.Key(i))
	}
	return k
}

func TestPutMany(t *testing.T) {
	c := config(t)
	f := c.Formats[0]
	tr := open(t, c)
	some := keys(0, 40)
	some = append(some, some[3]) // one block twice
	srcs, errs := make([]mem.Extent, len(some)), make([]error, len(some))
	for i, key := range some {
		srcs[i] = image(t, f, key)
	}
	srcs[5].Bytes()[f.Layout.ShardOff(0)] ^= 1
	srcs[6] = srcs[6].Sub(0, 10)
	tr.PutMany(t.Context(), some, srcs, errs)
	for i, key := range some {
		switch i {
		case 5:
			if !errors.Is(errs[i], errdefs.ErrCorrupt) {
				t.Errorf("a damaged image: %v", errs[i])
			}
		case 6:
			if !errors.Is(errs[i], errdefs.ErrInvalid) {
				t.Errorf("a short extent: %v", errs[i])
			}
		default:
			if err := errors.Join(errs[i], get(t, tr, f, key)); err != nil {
				t.Errorf("block %d: %v", i, err)
			}
		}
	}
	if st := tr.Stats(); st.Puts != 38 || st.Blocks != 38 {
		t.Errorf("%+v", st)
	}
}

func TestSecondOwnerIsRefused(t *testing.T) {
	c := config(t)
	tr := open(t, c)
	put(t, tr, c.Formats[0], tiertest.Key(1))
	if _, err := log.Open(t.Context(), c); !errors.Is(err, errdefs.ErrBusy) || !strings.Contains(err.Error(), "only one may") {
		t.Errorf("a second owner: %v", err)
	}
	c.ReadOnly = true
	ro := open(t, c)
	if err := get(t, ro, c.Formats[0], tiertest.Key(1)); err != nil {
		t.Error(err)
	}
	if err := ro.Put(t.Context(), tiertest.Key(2), image(t, c.Formats[0], tiertest.Key(2))); !errors.Is(err, errdefs.ErrReadOnly) {
		t.Error(err)
	}
}

func TestBoundHoldsAndWhatIsUsedStays(t *testing.T) {
	c := config(t)
	f := c.Formats[0]
	c.MaxBytes = 16 * segmentBytes
	tr := open(t, c)
	pinned := keys(0, 10)
	put(t, tr, f, pinned...)
	if n, err := tr.Retain(t.Context(), pinned); n != len(pinned) || err != nil {
		t.Fatal(n, err)
	}
	hot := keys(10, 20)
	put(t, tr, f, hot...)
	for i := 20; i < 1500; i++ {
		put(t, tr, f, tiertest.Key(i))
		if i%40 == 0 {
			for _, key := range hot {
				if err := get(t, tr, f, key); err != nil {
					t.Fatalf("a block that is used, after %d: %v", i, err)
				}
			}
		}
	}
	for _, key := range pinned {
		if err := get(t, tr, f, key); err != nil {
			t.Error(err)
		}
	}
	tr.Release(pinned)
	var bytes int64
	for _, name := range segmentFiles(t, c.Dir) {
		if info, err := os.Stat(name); err == nil { // the segment may have been removed meanwhile
			bytes += info.Size()
		}
	}
	if st := tr.Stats(); st.Evictions == 0 || bytes > c.MaxBytes || st.Errors != 0 || st.Corrupt != 0 {
		t.Errorf("%d bytes, %+v", bytes, st)
	}
}
