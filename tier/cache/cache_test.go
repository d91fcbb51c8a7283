package cache_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/cache"
	"github.com/kvlane/kvlane/tier/tiertest"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// memory returns host memory for n blocks and a few more bytes. The tier does not need pinned
// memory.
func memory(tb testing.TB, f block.Format, n int) *mem.Region {
	tb.Helper()
	b, err := hostmem.Alloc(int64(n)*f.Layout.ImageBytes() + 100)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := hostmem.Free(b); err != nil {
			tb.Error(err)
		}
	})
	r, err := hostmem.Region(b)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func open(tb testing.TB, f block.Format, n int) *cache.Tier {
	tb.Helper()
	c, err := cache.Open(cache.Config{Memory: memory(tb, f, n), Formats: block.Formats{f}})
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func TestConformance(t *testing.T) {
	f := tiertest.NewFormat(t)
	tiertest.Run(t, tiertest.Config{
		Format:  f,
		Open:    func(t *testing.T, capacity int) tier.Tier { return open(t, f, capacity) },
		Bounded: true,
		Corrupt: func(t *testing.T, tr tier.Tier, key block.Key) {
			st, ok := tr.(tier.SlotTier)
			if !ok {
				t.Fatal("the cache has no slots")
			}
			slot, err := st.Open(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			slot.Extent().Bytes()[f.Layout.ShardOff(2)+77] ^= 4
			slot.Release()
		},
	})
}

func closeTier(tb testing.TB, tr tier.Tier) {
	tb.Helper()
	if err := tr.Close(context.WithoutCancel(tb.Context())); err != nil {
		tb.Error(err)
	}
}

func reserve(tb testing.TB, c *cache.Tier, i int) tier.Fill {
	tb.Helper()
	fill, err := c.Reserve(tb.Context(), tiertest.Key(i))
	if err != nil {
		tb.Fatal(err)
	}
	return fill
}

// finish seals and publishes a fill. It may run on any goroutine.
func finish(tb testing.TB, f block.Format, fill tier.Fill, i int) tier.Slot {
	tb.Helper()
	tiertest.Seal(tb, f, fill.Extent().Bytes(), tiertest.Key(i), 0)
	slot, err := fill.Publish()
	if err != nil {
		tb.Error(err)
	}
	return slot
}

func store(tb testing.TB, c *cache.Tier, f block.Format, i int) tier.Slot {
	tb.Helper()
	return finish(tb, f, reserve(tb, c, i), i)
}

func TestOpenRefuses(t *testing.T) {
	f := tiertest.NewFormat(t)
	small, err := hostmem.Alloc(f.Layout.ImageBytes() - 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := hostmem.Free(small); err != nil {
			t.Error(err)
		}
	}()
	smallRegion, err := hostmem.Region(small)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Len: 1 << 30, Dev: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	good := memory(t, f, 1)
	for name, c := range map[string]cache.Config{
		"nothing":             {},
		"no memory":           {Formats: block.Formats{f}},
		"no layout":           {Memory: good},
		"less than one image": {Memory: smallRegion, Formats: block.Formats{f}},
		"device memory":       {Memory: dev, Formats: block.Formats{f}},
	} {
		if _, err := cache.Open(c); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if err := (&cache.Config{}).Validate(); !strings.Contains(err.Error(), "0 formats") || !strings.Contains(err.Error(), "no memory") {
		t.Errorf("the error does not name every problem: %v", err)
	}
}

// Close fails and reports the slots in use. It succeeds after all are released.
func TestCloseCountsWhatIsInUse(t *testing.T) {
	f := tiertest.NewFormat(t)
	clock := clockwork.NewFakeClock()
	c, err := cache.Open(cache.Config{Memory: memory(t, f, 8), Formats: block.Formats{f}, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	slot, again := store(t, c, f, 1), store(t, c, f, 2)
	if n, err := c.Retain(t.Context(), tiertest.Keys(2)); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	filling := reserve(t, c, 3)
	quiesced := make(chan struct{})
	reserve(t, c, 4).Quarantine(errors.New("abandoned"), quiesced)
	fifth := reserve(t, c, 5)
	clock.Advance(90 * time.Second)
	want := func(text string) {
		t.Helper()
		err := c.Close(context.WithoutCancel(t.Context()))
		if text == "" && err != nil || text != "" && (!errors.Is(err, errdefs.ErrBusy) || !strings.Contains(err.Error(), text)) {
			t.Errorf("close: %v, want %q", err, text)
		}
	}
	want("2 slots open, 1 retains not released, 2 slots being filled (the oldest for 1m30s), 1 in quarantine")
	fifth.Quarantine(errors.New("abandoned after close"), quiesced)
	want("2 slots open, 1 retains not released, 1 slots being filled (the oldest for 1m30s), 2 in quarantine")
	close(quiesced)
	want("1 slots being filled (the oldest for 1m30s), 0 in quarantine")
	filling.Abort(nil)
	slot.Release()
	again.Release()
	want("0 slots open, 1 retains not released")
	c.Release(tiertest.Keys(2))
	want("")
}

// The causes of failures are kept up to a limit. The oldest is dropped first.
func TestFailuresAreBounded(t *testing.T) {
	const slots, failures = 3, 10
	f := tiertest.NewFormat(t)
	c := open(t, f, slots)
	defer closeTier(t, c)
	states := make([]tier.State, failures)
	var ks []block.Key
	for i := range failures {
		reserve(t, c, i).Abort(errors.New("no luck"))
		ks = append(ks, tiertest.Key(i))
	}
	if err := c.Lookup(t.Context(), ks, states); err != nil {
		t.Fatal(err)
	}
	for i, got := range states {
		want := tier.Absent
		if i >= failures-slots {
			want = tier.Failed
		}
		if got != want {
			t.Errorf("block %d is %s, want %s", i, got, want)
		}
	}
	if err := c.Delete(t.Context(), ks[failures-1]); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("delete of a failed block: %v", err)
	}
	if err := c.Lookup(t.Context(), ks, states); err != nil || states[failures-1] != tier.Absent {
		t.Errorf("a failed block that was deleted is %s, %v", states[failures-1], err)
	}
}

// Each handle is one allocation, so that a second Release has no effect. There are no other
// allocations.
func TestAllocations(t *testing.T) {
	f := tiertest.NewFormat(t)
	c := open(t, f, 4)
	defer closeTier(t, c)
	defer store(t, c, f, 1).Release() // leased, so that the eviction below spares it
	ctx, key, next := t.Context(), tiertest.Key(1), 100
	ks, states := tiertest.Keys(1, 2, 3), make([]tier.State, 3)
	for name, tt := range map[string]struct {
		most float64
		run  func() error
	}{
		"open and release": {1, func() error {
			slot, err := c.Open(ctx, key)
			if err == nil {
				slot.Release()
			}
			return err
		}},
		"retain and release": {0, func() error {
			n, err := c.Retain(ctx, ks[:1])
			c.Release(ks[:n])
			return err
		}},
		"lookup": {0, func() error { return c.Lookup(ctx, ks, states) }},
		"evict, reserve, publish and release": {1, func() error {
			fill, err := c.Reserve(ctx, tiertest.Key(next))
			if err != nil {
				return err
			}
			next++
			slot, err := fill.Publish()
			if err == nil {
				slot.Release()
			}
			return err
		}},
	} {
		if n := testing.AllocsPerRun(200, func() {
			if err := tt.run(); err != nil {
				t.Fatal(err)
			}
		}); n > tt.most {
			t.Errorf("%s: %v allocations, want at most %v", name, n, tt.most)
		}
	}
}

// TestSlotHammer fills, aborts, opens, corrupts and quarantines few blocks in fewer slots from many
// goroutines. An open block is sound, and no slot is lost.
func TestSlotHammer(t *testing.T) {
	const workers, blocks, slots, rounds = 6, 12, 8, 200
	f := tiertest.NewFormat(t)
	c := open(t, f, slots)
	var wg sync.WaitGroup
	for w := range workers {
		rng := rand.New(rand.NewPCG(uint64(w), 3))
		wg.Go(func() {
			for range rounds {
				hammerSlot(t, c, f, rng, rng.IntN(blocks))
			}
		})
	}
	wg.Wait()
	for i := range slots { // every slot is still usable
		defer store(t, c, f, 100+i).Release()
	}
	if st := c.Stats(); st.Quarantined != 0 || st.Retained != slots || st.Blocks != slots {
		t.Errorf("stats at the end: %+v", st)
	}
}

func hammerSlot(t *testing.T, c *cache.Tier, f block.Format, rng *rand.Rand, i int) {
	t.Helper()
	slot, err := c.Open(t.Context(), tiertest.Key(i))
	if err == nil {
		if err := tiertest.Check(f, slot.Extent().Bytes(), tiertest.Key(i), 0); err != nil {
			t.Error(err)
		}
		if rng.IntN(20) == 0 {
			slot.Corrupt(errors.New("so it seems"))
		}
		slot.Release()
		return
	}
	fill, err := c.Reserve(t.Context(), tiertest.Key(i))
	if err != nil {
		if !errors.Is(err, errdefs.ErrExists) {
			t.Error(err)
		}
		return
	}
	switch rng.IntN(6) {
	case 0:
		clear(fill.Extent().Bytes())
		fill.Abort(errors.New("no luck"))
	case 1:
		quiesced, b := make(chan struct{}), fill.Extent().Bytes()
		fill.Quarantine(errors.New("abandoned"), quiesced)
		clear(b) // a late write, which must not reach another block
		close(quiesced)
	default:
		finish(t, f, fill, i).Release()
	}
}
