package store_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/faulty"
)

// newThree returns a store with a cache, a file tier that fails as plan demands, and a log tier.
func newThree(t *testing.T, plan *fault.Plan, tune func(*rigOptions)) *rig {
	t.Helper()
	o := rigOptions{
		slots: 4, dirs: []string{t.TempDir()}, logDir: t.TempDir(),
		wrapFile: func(tr tier.Tier) tier.Tier { return faulty.New(tr, plan, nil) },
	}
	if tune != nil {
		tune(&o)
	}
	return newRig(t, o)
}

// wantLeftOut checks that d left out tierName for the given number of blocks with the given cause.
// A nil cause accepts any cause. With 0 blocks no tier may be left out.
func wantLeftOut(t *testing.T, d *store.DumpTask, tierName string, blocks int, cause error) {
	t.Helper()
	got := d.LeftOut()
	switch {
	case blocks == 0 && len(got) == 0:
	case len(got) != 1 || got[0].Tier != tierName || got[0].Blocks != blocks || got[0].Cause == nil || cause != nil && !errors.Is(got[0].Cause, cause):
		t.Errorf("blocks left out: %+v, want %d blocks of %s because of %v", got, blocks, tierName, cause)
	}
}

// wantTiers checks the numbers of blocks in the file tier and in the log tier.
func (r *rig) wantTiers(files, logged int64) {
	r.tb.Helper()
	if f, l := r.file.Stats().Blocks, r.log.Stats().Blocks; f != files || l != logged {
		r.tb.Errorf("%d blocks are in files and %d in the log, want %d and %d", f, l, files, logged)
	}
}

// A dump writes each block to every tier. A load reads a block from the first tier that has it, and
// stores it in the cache only.
func TestEveryTierGetsEachBlock(t *testing.T) {
	t.Parallel()
	r := newThree(t, nil, nil)
	wantLeftOut(t, r.dump(1, 2, 3), "", 0, nil)
	r.wantTiers(3, 3)
	r.forgetCached(1, 2, 3)
	r.mustLoad(1, 2)
	for _, n := range []int{1, 2, 3} {
		r.must(r.file.Delete(r.ctx(), r.key(n)))
	}
	r.forgetCached(1, 2)
	for i, want := range []string{"log", "log"} {
		if h := r.hits(1, 2)[i]; h.Tier != want {
			t.Errorf("block %d is found in %q, want %q", i, h.Tier, want)
		}
	}
	lease, err := r.st.LeasePrefix(r.ctx(), r.keys(1, 2), 0)
	r.must(err)
	if lease.Len() != 2 || lease.Tier(0) != "log" || r.file.Stats().Retained != 0 || r.log.Stats().Retained != 2 {
		t.Errorf("%d blocks are leased in %s", lease.Len(), lease.Tier(0))
	}
	lease.Release()
	r.mustLoad(1, 2)
	r.wantTiers(0, 3)
	st := r.st.Stats()
	if got := []int64{st.Tiers[0].Hits, st.Tiers[1].Hits, st.Tiers[2].Hits}; !slices.Equal(got, []int64{0, 2, 2}) {
		t.Errorf("hits by tier are %v", got)
	}
	// A dump copies cached blocks to the tier that lacks them.
	if d := r.dump(1, 2); d.Skipped() != 2 {
		t.Errorf("%d of 2 blocks were skipped", d.Skipped())
	}
	r.wantTiers(2, 3)
}

// A failing tier in the middle of the list is left out, counted and named. The block is durable in
// the last tier, where another store finds it.
func TestFailingMiddleTierIsLeftOut(t *testing.T) {
	t.Parallel()
	for _, op := range []string{faulty.OpPut, "every operation"} {
		plan := fault.New(1)
		var hooked []string
		r := newThree(t, plan, func(o *rigOptions) {
			o.tune = func(c *store.Config) {
				c.Writers = 1
				c.Hooks.LeftOut = func(tr string, _ block.Key, _ error) { hooked = append(hooked, tr) }
			}
		})
		r.dump(0)
		ops := []string{op}
		if op != faulty.OpPut {
			ops = []string{faulty.OpPut, faulty.OpGet, faulty.OpRetain, faulty.OpLookup}
		}
		for _, op := range ops {
			plan.Add(fault.Every(op, 1).Fail(nil))
		}
		wantLeftOut(t, r.dump(1, 2, 3), "file", 3, fault.ErrInjected)
		r.wantTiers(1, 4)
		st := r.st.Stats()
		if st.Tiers[1].LeftOut != 3 || st.Tiers[2].LeftOut != 0 || st.DumpErrors != 0 || st.Dumped != 4 {
			t.Errorf("%+v", st)
		}
		if !slices.Equal(hooked, []string{"file", "file", "file"}) {
			t.Errorf("the hook was called for %q", hooked)
		}
		r.closeStore()
		r.openStore()
		r.mustLoad(1, 2, 3)
		if hits := r.st.Stats().Tiers[2].Hits; hits != 3 {
			t.Errorf("%d blocks were read from the log", hits)
		}
		plan.Clear()
		wantLeftOut(t, r.dump(1, 2, 3), "", 0, nil)
		r.wantTiers(4, 4)
	}
}

// A tier that is full, or whose directory is missing, is left out.
func TestFullAndAbsentTiersAreLeftOut(t *testing.T) {
	t.Parallel()
	full := newThree(t, nil, func(o *rigOptions) {
		o.wrapFile = func(tr tier.Tier) tier.Tier {
			return &hookTier{Tier: tr, put: func(context.Context, block.Key, mem.Extent) error { return errdefs.ErrBusy }}
		}
	})
	wantLeftOut(t, full.dump(1, 2), "file", 2, errdefs.ErrBusy)
	full.wantTiers(0, 2)

	gone := newThree(t, nil, nil)
	gone.must(os.RemoveAll(gone.o.dirs[0]))
	gone.must(os.WriteFile(gone.o.dirs[0], nil, 0o600))
	wantLeftOut(t, gone.dump(1, 2), "file", 2, nil)
	gone.forgetCached(1, 2)
	gone.mustLoad(1, 2)
	gone.must(os.Remove(gone.o.dirs[0]))
}

// A block fails only if no tier stores it. The error joins the errors of all tiers.
func TestBlockThatNoTierStoresFails(t *testing.T) {
	t.Parallel()
	var refuse [2]bool // one entry for each tier
	refusing := func(n int, t tier.Tier) tier.Tier {
		return &hookTier{Tier: t, put: func(ctx context.Context, key block.Key, src mem.Extent) error {
			if refuse[n] {
				return errdefs.ErrNoSpace
			}
			return t.Put(ctx, key, src)
		}}
	}
	r := newThree(t, nil, func(o *rigOptions) {
		o.wrapFile = func(t tier.Tier) tier.Tier { return refusing(0, t) }
		o.tune = func(c *store.Config) { c.Next[1] = refusing(1, c.Next[1]) }
	})
	for n, tiers := range [][2]bool{{false, false}, {true, false}, {false, true}, {true, true}} {
		refuse = tiers
		d := r.startDump(n)
		err := d.Durable(r.ctx())
		if all := tiers == [2]bool{true, true}; (err != nil) != all || all && (!errors.Is(err, errdefs.ErrNoSpace) || len(d.LeftOut()) != 2) {
			t.Errorf("refusing %v: %v, %+v", tiers, err, d.LeftOut())
		}
	}
	if st := r.st.Stats(); st.Dumped != 3 || st.DumpErrors != 1 || st.Tiers[1].LeftOut != 2 || st.Tiers[2].LeftOut != 2 {
		t.Errorf("%+v", st)
	}
}

// A canceled dump does not report a tier as left out, and its block is not durable.
func TestCanceledDumpLeavesNoTierOut(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	r := newThree(t, nil, func(o *rigOptions) {
		o.tune = func(c *store.Config) {
			c.Next[1] = &hookTier{Tier: c.Next[1], put: func(ctx context.Context, _ block.Key, _ mem.Extent) error {
				close(begun)
				<-ctx.Done()
				return context.Cause(ctx)
			}}
		}
	})
	d := r.startDump(1)
	<-begun
	d.Cancel()
	wantErr(t, d.Durable(r.ctx()), errdefs.ErrCanceled)
	if st := r.st.Stats(); len(d.LeftOut()) != 0 || st.Tiers[2].LeftOut != 0 || st.DumpErrors != 1 {
		t.Errorf("%+v, %+v", d.LeftOut(), st)
	}
}

// If a block that was read cannot be published, its slot is released and no other tier is read into
// it.
func TestNoTierIsReadIntoASlotThatIsFree(t *testing.T) {
	t.Parallel()
	plan := fault.New(1)
	r := newThree(t, nil, func(o *rigOptions) {
		o.wrapCache = func(c tier.SlotTier) tier.SlotTier { return faulty.NewSlots(c, plan, nil) }
	})
	r.dump(1)
	r.forgetCached(1)
	plan.Add(fault.Every(faulty.OpPublish, 1).Fail(nil))
	wantErr(t, r.load(store.LoadOptions{}, 1)[0], fault.ErrInjected)
	if n := r.log.Stats().Hits; n != 0 {
		t.Errorf("%d blocks were read from the log into a slot that was free", n)
	}
	plan.Clear()
	r.mustLoad(1)
}

// A direct load reads a block from the first tier that has it. If that copy is damaged, the CPU
// examines it, and the next tier is read into the same slot of host memory.
func TestDirectLoadsFromTheFirstTier(t *testing.T) {
	t.Parallel()
	for _, window := range []bool{true, false} {
		r := newRig(t, rigOptions{
			slots: 4, planeBytes: 2 * leafy, path: stream.PathKernel, window: window, dirs: []string{t.TempDir()}, logDir: t.TempDir(),
			direct: &directOptions{model: sim.StorageModel{Aligned: true}},
		})
		r.dump(1, 2, 3)
		r.wantTiers(3, 3)
		if !window {
			r.forgetCached(1, 2, 3)
		}
		r.must(r.file.Delete(r.ctx(), r.key(2)))
		path := findFile(r.o.dirs[0], r.key(3))
		image, err := os.ReadFile(path)
		r.must(err)
		image[1] ^= 1 // a byte of the header
		r.must(os.WriteFile(path, image, 0o600))
		r.mustLoad(1)
		r.mustLoad(2)
		r.wantDirect(2, 0)
		if st := r.st.Stats(); st.Tiers[1].Hits != 1 || st.Tiers[2].Hits != 1 || st.DirectDumped != 0 {
			t.Errorf("with a window %t: %d hits of files, %d of the log, %d dumped directly", window, st.Tiers[1].Hits, st.Tiers[2].Hits, st.DirectDumped)
		}
		r.mustLoad(3)
		r.wantDirect(2, 0)
		if st := r.st.Stats(); st.Tiers[2].Hits != 2 || st.Tiers[1].Tier.Corrupt != 1 {
			t.Errorf("with a window %t: %+v", window, st.Tiers)
		}
		if h := r.hits(3)[0]; h.State == tier.Filling {
			t.Errorf("with a window %t: block 3 is still being filled", window)
		}
		r.mustLoad(3)
	}
}

// A damaged file counts as one corrupt block of the file tier, and the load reads the log tier.
func TestDamagedMiddleTierIsCountedOnce(t *testing.T) {
	t.Parallel()
	for _, direct := range []*directOptions{nil, {model: sim.StorageModel{Aligned: true}}} {
		var tiers []string
		r := newRig(t, rigOptions{
			slots: 4, planeBytes: 2 * leafy, path: stream.PathKernel, dirs: []string{t.TempDir()}, logDir: t.TempDir(), direct: direct,
			tune: func(c *store.Config) {
				c.Hooks.Corrupt = func(tr string, _ block.Key, _ error) { tiers = append(tiers, tr) }
			},
		})
		r.dump(1)
		r.forgetCached(1)
		r.flipFile(1, 0)
		r.mustLoad(1)
		if st := r.st.Stats(); st.Mismatches != 1 || st.Tiers[2].Hits != 1 || !slices.Equal(tiers, []string{"file"}) {
			t.Errorf("direct %t: %d mismatches, in %q; %d hits of the log", direct != nil, st.Mismatches, tiers, st.Tiers[2].Hits)
		}
	}
}
