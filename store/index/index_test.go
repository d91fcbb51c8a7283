package index_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store/index"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/cache"
	"github.com/kvlane/kvlane/tier/faulty"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/tiertest"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// rig is an index over a cache in ordinary memory and a file tier, without a device.
type rig struct {
	*testing.T
	f     block.Format
	image mem.Extent
	cache *cache.Tier
	file  *file.Tier
	x     *index.Index
}

func newRig(t *testing.T, slots int, tune func(r *rig, c *index.Config)) *rig {
	t.Helper()
	r := &rig{T: t, f: tiertest.NewFormat(t)}
	r.image = tiertest.Buffer(t, r.f.Layout.ImageBytes())
	b, err := hostmem.Alloc(int64(slots) * r.f.Layout.ImageBytes())
	r.must(err)
	t.Cleanup(func() { r.must(hostmem.Free(b)) })
	memory, err := hostmem.Region(b)
	r.must(err)
	r.cache, err = cache.Open(cache.Config{Memory: memory, Formats: block.Formats{r.f}})
	r.must(err)
	r.file, err = file.Open(t.Context(), file.Config{Dirs: []string{t.TempDir()}, Formats: block.Formats{r.f}})
	r.must(err)
	c := index.Config{Tiers: []tier.Tier{r.cache, r.file}}
	if tune != nil {
		tune(r, &c)
	}
	r.x, err = index.Open(c)
	r.must(err)
	t.Cleanup(func() {
		r.x.Close()
		r.must(r.cache.Close(context.Background()))
		r.must(r.file.Close(context.Background()))
	})
	return r
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) put(t tier.Tier, is ...int) {
	r.Helper()
	for _, i := range is {
		tiertest.Seal(r.T, r.f, r.image.Bytes(), tiertest.Key(i), 0)
		r.must(t.Put(r.Context(), tiertest.Key(i), r.image))
	}
}

// lease leases blocks. want contains the tier of each leased block: c for the cache, f for the file
// tier.
func (r *rig) lease(want string, is ...int) *index.Lease {
	r.Helper()
	before := r.cache.Stats().Retained + r.file.Stats().Retained
	l, err := r.x.LeasePrefix(r.Context(), tiertest.Keys(is...), 0)
	r.must(err)
	got := ""
	for i := range l.Len() {
		got += l.Tier(i)[:1]
	}
	if got != want {
		r.Errorf("blocks %v are leased in %q, want %q", is, got, want)
	}
	if n := r.cache.Stats().Retained + r.file.Stats().Retained - before; n != int64(l.Len()) {
		r.Errorf("%d blocks are pinned and %d leased", n, l.Len())
	}
	return l
}

func (r *rig) wantFree() {
	r.Helper()
	if c, f := r.cache.Stats().Retained, r.file.Stats().Retained; c+f != 0 {
		r.Errorf("%d pins are left in the cache, %d in the files", c, f)
	}
}

func span(from, to int) (out []int) {
	for i := from; i < to; i++ {
		out = append(out, i)
	}
	return out
}

// Each block is pinned in the first tier that has it, and a prefix ends at the first that no tier
// has.
func TestLeaseTakesEachBlockFromTheFirstTierThatHasIt(t *testing.T) {
	r := newRig(t, 8, nil)
	r.put(r.cache, 0, 1, 4, 6, 9)
	r.put(r.file, 1, 2, 3, 4, 5, 7, 10)
	for want, is := range map[string][]int{
		"ccffcfcf": span(0, 10), // no tier has block 8
		"fcf":      {10, 9, 10, 8, 0},
		"":         {8, 0},
		"cccff":    {1, 1, 1, 2, 2},
	} {
		r.lease(want, is...).Release()
	}
	r.lease("").Release()
	r.wantFree()
}

// A run of blocks in the lower tier is longer than the look-ahead.
func TestLeaseOfAThousandBlocksBelow(t *testing.T) {
	r := newRig(t, 4, nil)
	const n = 300
	r.put(r.file, span(0, n)...)
	r.put(r.cache, 150, 299)
	want := []byte(nil)
	for i := range n {
		want = append(want, map[bool]byte{true: 'c', false: 'f'}[i == 150 || i == 299])
	}
	r.lease(string(want), span(0, n+5)...).Release()
	r.wantFree()
}

// Beyond the limit of pins, blocks are pinned in the lower tier. A block that is pinned may be
// pinned again.
func TestLeasesBeyondTheLimit(t *testing.T) {
	r := newRig(t, 8, func(r *rig, _ *index.Config) { r.cache.LimitRetained(2) })
	r.put(r.cache, 0, 1, 2, 3, 4)
	r.put(r.file, 2, 3)
	l := r.lease("ccff", span(0, 5)...)
	if n := r.x.Stats().Cut; n != 1 {
		t.Errorf("%d leases were cut, want 1", n)
	}
	r.lease("fcc", 2, 0, 1).Release()
	l.Release()
	r.lease("cc", 4, 3).Release()
	r.wantFree()
}

// A failing tier is skipped and reported, and pins no block.
func TestTierThatFailsIsPassedOver(t *testing.T) {
	for _, action := range []string{"fail", "half"} {
		plan := fault.New(1)
		var reported []string
		r := newRig(t, 8, func(r *rig, c *index.Config) {
			c.Tiers[0] = faulty.NewSlots(r.cache, plan, nil)
			c.Fallback = func(tier string, _ block.Key, err error) {
				if errors.Is(err, fault.ErrInjected) {
					reported = append(reported, tier)
				}
			}
		})
		r.put(r.cache, 0, 1, 2, 3)
		r.put(r.file, 0, 1, 2)
		rule, want := fault.Nth(faulty.OpRetain, 0), "fffc"
		if action == "half" {
			rule, want = rule.Partial(nil), "ccfc"
		}
		plan.Add(rule)
		plan.Add(fault.After(faulty.OpLookup, 0).Fail(nil))
		r.lease(want, span(0, 4)...).Release()
		hits, err := r.x.Lookup(t.Context(), tiertest.Keys(0, 3))
		r.must(err)
		if hits[0].Tier != "file" || hits[1].State != tier.Absent {
			t.Errorf("with a failing cache: %+v", hits)
		}
		if n := r.x.Stats().Fallbacks; int(n) != len(reported) || n < 3 || slices.Contains(reported, "file") {
			t.Errorf("%d failures are counted, reported %v", n, reported)
		}
		r.wantFree()
	}
}

// A lease that fails leaves no block pinned.
func TestLeaseThatIsNotGivenKeepsNothing(t *testing.T) {
	r := newRig(t, 8, nil)
	r.put(r.cache, 0, 1)
	r.put(r.file, 2, 3)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.x.LeasePrefix(ended, tiertest.Keys(0, 1, 2, 3), 0); !errors.Is(err, errdefs.ErrCanceled) {
		t.Error(err)
	}
	l := r.lease("ccff", 0, 1, 2, 3)
	r.must(l.Begin(r.x, tiertest.Keys(3, 1)))
	r.x.Close()
	r.x.Close()
	if n := r.cache.Stats().Retained + r.file.Stats().Retained; n != 4 {
		t.Errorf("%d blocks are pinned while a load runs under the lease, want 4", n)
	}
	if err := l.Begin(r.x, nil); !errors.Is(err, errdefs.ErrExpired) {
		t.Error(err)
	}
	l.End()
	r.wantFree()
	if _, err := r.x.LeasePrefix(t.Context(), nil, 0); !errors.Is(err, errdefs.ErrClosed) {
		t.Error(err)
	}
	if _, err := r.x.Lookup(t.Context(), nil); !errors.Is(err, errdefs.ErrClosed) {
		t.Error(err)
	}
}

// An index may start with a file tier, and leases expire.
func TestIndexOfFilesAlone(t *testing.T) {
	clock := clockwork.NewFakeClock()
	r := newRig(t, 1, func(r *rig, c *index.Config) { c.Tiers, c.Clock, c.LeaseMax = []tier.Tier{r.file}, clock, time.Second })
	r.put(r.file, 0, 1)
	l := r.lease("ff", 0, 1, 2)
	r.must(clock.BlockUntilContext(t.Context(), 1))
	for r.x.Stats().Live > 0 {
		clock.Advance(time.Second)
		time.Sleep(time.Millisecond)
	}
	if err := l.Begin(r.x, nil); !errors.Is(err, errdefs.ErrExpired) {
		t.Error(err)
	}
	l.Release()
	r.x.Close() // waits for the janitor
	r.wantFree()
	if st := r.x.Stats(); st.Leases != 1 || st.Expired != 1 {
		t.Errorf("%+v", st)
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, c := range []index.Config{{}, {Tiers: []tier.Tier{nil}}, {Tiers: []tier.Tier{&file.Tier{}}, LeaseMax: -1}} {
		if _, err := index.Open(c); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
