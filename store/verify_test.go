package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
)

// leafy is the size of the smallest plane with two whole leaves.
const leafy = 2 * mem.LeafBytes

func TestVerifyPolicyNames(t *testing.T) {
	t.Parallel()
	for _, p := range []store.VerifyPolicy{store.VerifyDevice, store.VerifyAlways, store.VerifyFill} {
		got, err := store.ParseVerify(p.String())
		if err != nil || got != p {
			t.Errorf("%v parses to %v, %v", p, got, err)
		}
	}
	if _, err := store.ParseVerify("never"); !errors.Is(err, errdefs.ErrInvalid) {
		t.Error(err)
	}
	if p := (store.Config{}).Verify; p != store.VerifyDevice {
		t.Errorf("the default is %v", p)
	}
}

// Three packages define the size of a leaf. Package block fixes it as part of the format, and the
// others must agree.
func TestLeavesAreTheSameEverywhere(t *testing.T) {
	t.Parallel()
	if mem.LeafBytes != block.LeafBytes || device.LeafBytes != block.LeafBytes || device.LeafAlign != mem.LeafAlign {
		t.Errorf("a leaf of a copy has %d bytes, a kernel's %d, a block's %d; aligned to %d and %d",
			mem.LeafBytes, device.LeafBytes, block.LeafBytes, mem.LeafAlign, device.LeafAlign)
	}
}

// TestPolicies runs a round trip under every policy, with streams that sum all, some and none of
// their batches.
func TestPolicies(t *testing.T) {
	t.Parallel()
	for _, policy := range []store.VerifyPolicy{store.VerifyDevice, store.VerifyAlways, store.VerifyFill} {
		for _, every := range []int{noSums, 0, 1, 2} {
			for _, planeBytes := range []int64{leafy, 1000} {
				for _, layerwise := range []bool{false, true} {
					t.Run(fmt.Sprintf("%v/every=%d/plane=%d/layerwise=%v", policy, every, planeBytes, layerwise), func(t *testing.T) {
						t.Parallel()
						r := newRig(t, rigOptions{planeBytes: planeBytes, sumEvery: every, dirs: []string{t.TempDir()}, tune: func(c *store.Config) {
							c.Verify = policy
							c.BatchBytes = 2 * c.Formats[0].Layout.ImageBytes() // several batches
						}})
						roundTrip(t, r, layerwise, true)
						if every == 2 { // only the second batch is summed
							for _, err := range r.load(store.LoadOptions{Layerwise: layerwise}, 5, 6) {
								r.must(err)
							}
						}
						want := policy != store.VerifyFill && every > 0 && planeBytes == leafy
						var p store.PathStats
						for _, by := range r.st.Stats().LoadPaths {
							p.Bytes, p.Summed = p.Bytes+by.Bytes, p.Summed+by.Summed
						}
						if every != 0 && (p.Summed > 0) != want || (every == 1 && want && p.Summed != p.Bytes) {
							t.Errorf("%d of %d bytes were summed on their way, want some: %v", p.Summed, p.Bytes, want)
						}
					})
				}
			}
		}
	}
}

// The planes of a shard may be listed in any order. Its leaves are in the order of its bytes.
func TestSumsAreInTheOrderOfTheShardsBytes(t *testing.T) {
	t.Parallel()
	for _, layerwise := range []bool{false, true} {
		r := newRig(t, rigOptions{planeBytes: leafy, planes: 3, sumEvery: 1})
		r.fill(0, 1)
		turned := &store.Pages{}
		for _, planes := range r.pages.Shards {
			p := slices.Clone(planes)
			p[0], p[2] = p[2], p[0]
			turned.Shards = append(turned.Shards, p)
		}
		d, err := r.st.Dump(r.ctx(), turned, r.refs(0, 1), store.DumpOptions{Layerwise: layerwise})
		r.must(err)
		for i := range r.o.shards {
			if layerwise {
				r.must(d.SubmitShard(r.ctx(), r.o.shards-1-i))
			}
		}
		r.must(d.Durable(r.ctx()))
		sl, err := r.cache.Open(r.ctx(), r.key(1))
		r.must(err)
		r.must(r.format.Verify(sl.Extent().Bytes()[:r.format.Layout.ImageBytes()], r.key(1)))
		sl.Release()
		r.mustLoad(1)
	}
}

// reportCounts counts the bad copies and the corrupt tiers that a store reports.
type reportCounts struct{ copies, tiers atomic.Int64 }

func (v *reportCounts) hooks(c *store.Config) {
	c.Hooks.BadCopy = func(block.Key, error) { v.copies.Add(1) }
	c.Hooks.Corrupt = func(string, block.Key, error) { v.tiers.Add(1) }
}

// sumPath is a path with a value of rigOptions.sumEvery.
type sumPath struct {
	path  stream.Path
	every int // rigOptions.sumEvery
}

func (w sumPath) String() string {
	if w.every == 0 {
		return fmt.Sprintf("by %v", w.path)
	}
	return fmt.Sprintf("beside %v", w.path)
}

// summingPaths lists the ways in which streams sum every byte.
var summingPaths = []sumPath{{stream.PathKernel, 0}, {stream.PathStaged, 0}, {stream.PathKernel, 1}}

// copyOp returns the device operation that copies bytes between host and device.
func (w sumPath) copyOp() string {
	if w.path == stream.PathStaged {
		return sim.OpCopy
	}
	return sim.OpLaunch
}

// TestCorruptTransferToPagesIsMadeAgain corrupts copy n to pages, for every n. The load must detect
// it and repeat the copy. It must not report a corrupt tier.
func TestCorruptTransferToPagesIsMadeAgain(t *testing.T) {
	t.Parallel()
	for _, w := range summingPaths {
		for _, layerwise := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/layerwise=%v", w, layerwise), func(t *testing.T) {
				t.Parallel()
				for n := 0; corruptLoad(t, w, layerwise, n); n++ {
					if n > 20 {
						t.Fatal("the number of copies has no limit")
					}
				}
			})
		}
	}
}

// corruptLoad corrupts copy n of a load and reports whether the load had such a copy.
func corruptLoad(t *testing.T, w sumPath, layerwise bool, n int) bool {
	t.Helper()
	var v reportCounts
	plan := fault.New(1, fault.Nth(opBus, n))
	r := newRig(t, rigOptions{
		planeBytes: leafy, sumEvery: w.every, path: w.path,
		wrapLoad: func(st stream.Stream) stream.Stream { return &bus{Stream: st, plan: plan} },
		tune: func(c *store.Config) {
			v.hooks(c)
			c.BatchBytes = 2 * c.Formats[0].Layout.ImageBytes()
		},
	})
	ns := []int{1, 2, 3, 4, 5}
	r.dump(ns...)
	for _, err := range r.load(store.LoadOptions{Layerwise: layerwise}, ns...) {
		r.must(err)
	}
	hit := int64(plan.Injected())
	st := r.st.Stats()
	if st.BadCopies != hit || st.Mismatches != 0 || v.copies.Load() != hit || v.tiers.Load() != 0 {
		t.Fatalf("copy %d of %d damaged: %d bad copies (hook: %d), %d mismatches (hook: %d)", n, hit, st.BadCopies, v.copies.Load(), st.Mismatches, v.tiers.Load())
	}
	if p := st.LoadPaths[0]; p.Summed != p.Bytes {
		t.Fatalf("%d of %d bytes were summed: the test does not test", p.Summed, p.Bytes)
	}
	r.wantHits(true, ns...)
	if hit == 0 && n == 0 {
		t.Fatal("no copy was damaged")
	}
	return hit > 0
}

// If every copy is corrupted, a load fails after a limited number of attempts.
func TestTransferThatIsAlwaysCorruptNeverSucceeds(t *testing.T) {
	t.Parallel()
	for _, w := range summingPaths {
		for _, layerwise := range []bool{false, true} {
			for _, files := range []bool{false, true} {
				plan := fault.New(1, fault.After(opBus, 0))
				o := rigOptions{planeBytes: leafy, sumEvery: w.every, path: w.path}
				o.wrapLoad = func(st stream.Stream) stream.Stream { return &bus{Stream: st, plan: plan} }
				if files {
					o.dirs = []string{t.TempDir()}
				}
				r := newRig(t, o)
				r.dump(1)
				wantErr(t, r.load(store.LoadOptions{Layerwise: layerwise}, 1)[0], errdefs.ErrCorrupt)
				plan.Clear()
				if st := r.st.Stats(); st.BadCopies != 3 || st.LoadErrors != 1 || st.Mismatches != 0 {
					t.Fatalf("%v: %d bad copies, %d errors, %d mismatches", w, st.BadCopies, st.LoadErrors, st.Mismatches)
				}
				r.mustLoad(1) // the stored block is intact
			}
		}
	}
}

// TestCorruptTransferFromPagesIsFound corrupts copy n from pages, for every n. The checksums are
// those of the pages. So either the lower tier detects the damage before the block is durable, or
// the first load does.
func TestCorruptTransferFromPagesIsFound(t *testing.T) {
	t.Parallel()
	for _, w := range summingPaths {
		for _, layerwise := range []bool{false, true} {
			for _, files := range []bool{false, true} {
				t.Run(fmt.Sprintf("%v/layerwise=%v/files=%v", w, layerwise, files), func(t *testing.T) {
					t.Parallel()
					for n := 0; corruptDump(t, w, layerwise, files, n); n++ {
						if n > 20 {
							t.Fatal("the number of copies has no limit")
						}
					}
				})
			}
		}
	}
}

func corruptDump(t *testing.T, w sumPath, layerwise, files bool, n int) bool {
	t.Helper()
	o := rigOptions{planeBytes: leafy, sumEvery: w.every, path: w.path, tune: func(c *store.Config) { c.BatchBytes = 1 }}
	if files {
		o.dirs = []string{t.TempDir()}
	}
	r := newRig(t, o)
	ns := []int{1, 2}
	for i, k := range ns {
		r.fill(uint32(i), k)
	}
	r.plan.Add(fault.Nth(w.copyOp(), int(r.plan.Seen(w.copyOp()))+n).Corrupt())
	d, err := r.st.Dump(r.ctx(), r.pages, r.refs(0, ns...), store.DumpOptions{Layerwise: layerwise})
	r.must(err)
	for i := range r.o.shards {
		if layerwise {
			r.must(d.SubmitShard(r.ctx(), i))
		}
	}
	r.resolved(d.Done())
	hit := r.plan.Injected() > 0
	r.plan.Clear()
	if p := r.st.Stats().DumpPaths[0]; p.Summed != p.Bytes || n == 0 && !hit {
		t.Fatalf("%d of %d bytes were summed, a copy was damaged: %v; the test does not test", p.Summed, p.Bytes, hit)
	}
	var bad []error
	for i, err := range r.load(store.LoadOptions{}, ns...) { // load also compares the pages of blocks without an error
		dumped := d.Errs()[i]
		switch {
		case err == nil:
			r.must(dumped)
		case files:
			wantErr(t, dumped, errdefs.ErrCorrupt)
			bad = append(bad, err)
		default:
			r.must(dumped)
			wantErr(t, err, errdefs.ErrCorrupt)
			bad = append(bad, err)
		}
	}
	if hit && (len(bad) == 0 || r.st.Stats().Mismatches == 0) || !hit && len(bad) > 0 {
		t.Fatalf("copy %d damaged: %v; %d mismatches, errors %v", n, hit, r.st.Stats().Mismatches, bad)
	}
	r.dump(ns...) // the blocks can be stored again
	r.mustLoad(ns...)
	return hit
}

// Loads ignore a damaged header in a slot, because the cache keeps the checksums elsewhere. The
// lower tier refuses the block.
func TestDamagedHeaderAffectsNoLoad(t *testing.T) {
	t.Parallel()
	for _, every := range []int{noSums, 0, 1} {
		r := newRig(t, rigOptions{planeBytes: leafy, sumEvery: every})
		r.dump(1)
		for _, off := range []int64{40, 120, r.format.Layout.HeaderBytes() - 1} {
			r.flip(1, off)
			r.mustLoad(1)
		}
		if st := r.st.Stats(); st.Mismatches+st.BadCopies != 0 {
			t.Errorf("every=%d: %d mismatches, %d bad copies", every, st.Mismatches, st.BadCopies)
		}
	}
}

// TestDamagedSlotIsFoundUnderDevicePolicy flips a bit of each shard of a cached copy.
func TestDamagedSlotIsFoundUnderDevicePolicy(t *testing.T) {
	t.Parallel()
	for _, every := range []int{noSums, 0, 1, 2} {
		for _, layerwise := range []bool{false, true} {
			for _, files := range []bool{false, true} {
				t.Run(fmt.Sprintf("every=%d/layerwise=%v/files=%v", every, layerwise, files), func(t *testing.T) {
					t.Parallel()
					var v reportCounts
					o := rigOptions{planeBytes: leafy, sumEvery: every, tune: v.hooks}
					if files {
						o.dirs = []string{t.TempDir()}
					}
					r := newRig(t, o)
					var offs []int64
					for i := range r.o.shards {
						offs = append(offs, r.format.Layout.ShardOff(i)+leafy+int64(i)*100)
					}
					for _, off := range offs {
						r.dump(1, 2, 3)
						r.flip(2, off)
						before := r.st.Stats()
						errs := r.load(store.LoadOptions{Layerwise: layerwise}, 1, 2, 3)
						r.must(errs[0])
						r.must(errs[2])
						st := r.st.Stats()
						if files {
							r.must(errs[1])
						} else {
							wantErr(t, errs[1], errdefs.ErrCorrupt)
							r.wantHits(false, 2)
						}
						if st.Mismatches != before.Mismatches+1 || (st.Refills > before.Refills) != files || st.BadCopies != 0 || v.tiers.Load() != st.Mismatches {
							t.Fatalf("byte %d: %d mismatches (hook: %d), %d refills, %d bad copies", off, st.Mismatches, v.tiers.Load(), st.Refills, st.BadCopies)
						}
					}
				})
			}
		}
	}
}

// flip flips a bit of the cached copy of block n.
func (r *rig) flip(n int, off int64) {
	r.tb.Helper()
	sl, err := r.cache.Open(r.ctx(), r.key(n))
	r.must(err)
	defer sl.Release()
	sl.Extent().Bytes()[off] ^= 4
}

// When WaitShard returns, the shard is verified and does not change any more.
func TestWaitShardReturnsAfterTheShardWasVerified(t *testing.T) {
	t.Parallel()
	for _, every := range []int{noSums, 0, 1} {
		for shard := range 3 {
			r := newRig(t, rigOptions{planeBytes: leafy, sumEvery: every, dirs: []string{t.TempDir()}, path: stream.PathKernel})
			r.dump(1, 2)
			for page := range 2 {
				r.poison(uint32(page))
			}
			if every != noSums {
				r.plan.Add(fault.Nth(sim.OpLaunch, int(r.plan.Seen(sim.OpLaunch))).Corrupt())
			} else {
				r.flip(1, r.format.Layout.ShardOff(shard))
			}
			l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(0, 1, 2), store.LoadOptions{Layerwise: true})
			r.must(err)
			for k := range r.o.shards {
				r.must(l.WaitShard(r.ctx(), k))
				for page := range 2 {
					if got := r.shard(uint32(page), k, nil); !bytes.Equal(got, r.shardContent(page+1, k)) {
						t.Fatalf("every=%d: shard %d of block %d was handed out wrong", every, k, page+1)
					}
				}
				// A second copy of the shard would overwrite this.
				r.shard(0, k, bytes.Repeat([]byte{0x5a}, int(r.format.Layout.ShardBytes(k))))
			}
			r.must(l.Wait(r.ctx()))
			for k := range r.o.shards {
				if got := r.shard(0, k, nil); got[0] != 0x5a || got[len(got)-1] != 0x5a {
					t.Fatalf("every=%d: shard %d was written again after it had been waited for", every, k)
				}
			}
			if st := r.st.Stats(); st.BadCopies+st.Mismatches != 1 {
				t.Fatalf("every=%d, shard %d: %d bad copies and %d mismatches", every, shard, st.BadCopies, st.Mismatches)
			}
		}
	}
}

// shard writes b to a shard of a page. If b is nil, it returns the shard's content.
func (r *rig) shard(page uint32, shard int, b []byte) []byte {
	r.tb.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	stage := r.stage.Bytes()[:r.format.Layout.ShardBytes(shard)]
	copy(stage, b)
	for i := range r.pages.Shards[shard] {
		dst, src := r.pages.Shards[shard][i].Page(page), mem.Extent{Region: r.stage, Off: int64(i) * r.o.planeBytes, Len: r.o.planeBytes}
		if b == nil {
			dst, src = src, dst
		}
		r.must(r.queue.Copy(dst, src))
	}
	ev, err := r.queue.Record()
	r.must(err)
	defer ev.Close()
	r.must(ev.Wait(r.ctx()))
	return bytes.Clone(stage)
}

func (r *rig) shardContent(n, shard int) []byte {
	size := int(r.o.planeBytes) * r.o.planes
	return r.content(n)[shard*size:][:size]
}

// A load that is canceled while its copies are verified ends. Shards that it has reported stay
// valid.
func TestCancelWhileCopiesAreVerified(t *testing.T) {
	t.Parallel()
	for _, every := range []int{noSums, 0, 1} {
		for range 10 {
			r := newRig(t, rigOptions{planeBytes: leafy, sumEvery: every, path: stream.PathKernel, tune: func(c *store.Config) { c.BatchBytes = 1 }})
			ns := []int{1, 2, 3, 4, 5}
			r.dump(ns...)
			r.plan.Add(fault.Every(sim.OpLaunch, 3).Corrupt())
			l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(0, ns...), store.LoadOptions{Layerwise: true})
			r.must(err)
			if err := l.WaitShard(r.ctx(), 0); err != nil {
				wantErr(t, err, errdefs.ErrCorrupt) // every copy of this block was corrupted
			}
			l.Cancel()
			for i, err := range r.loaded(l) {
				switch {
				case err == nil && every != noSums:
					r.must(r.checkPage(uint32(i), ns[i]))
				case err != nil && !errors.Is(err, errdefs.ErrCanceled) && !errors.Is(err, errdefs.ErrCorrupt):
					t.Fatal(err)
				}
			}
			r.plan.Clear()
		}
	}
}
