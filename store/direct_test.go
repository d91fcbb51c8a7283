package store_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier"
)

// Loads read files without using host memory: whole and layerwise, with calls and with queues, in
// both modes of the cuFile library.
func TestLoadsReadDirectly(t *testing.T) {
	t.Parallel()
	for _, window := range []bool{false, true} {
		for _, queues := range []int{0, 2} {
			for _, compat := range []string{"", "forced"} {
				for _, layerwise := range []bool{false, true} {
					r, c, reports := newDirectRig(t, rigOptions{
						window: window, pages: 32, direct: &directOptions{model: sim.StorageModel{Aligned: true, Compat: compat}, queues: queues},
					}, 1, 2, 3, 4, 5, 6)
					again := 7 // in a store with a cache, a second request of block 7 brings it to the cache
					if window {
						again = 1
					} else {
						r.dump(7)
						r.forgetCached(7)
					}
					for _, err := range r.load(store.LoadOptions{Layerwise: layerwise}, 1, 2, 3, 4, 5, 6, again) {
						r.must(err)
					}
					c.want(t, 0, 0)
					reports.want(t)
					st := r.st.Stats()
					if st.VerifiedOnWay != 7 || st.VerifiedByCPU != 0 || st.Tiers[1].Hits != 7 || st.Fallbacks != 0 {
						t.Errorf("%d blocks verified on their way, %d by the CPU, %d hits, %d fallbacks", st.VerifiedOnWay, st.VerifiedByCPU, st.Tiers[1].Hits, st.Fallbacks)
					}
					r.wantDirect(7, 0)
					if window != (st.DirectDumped == 6) || !window && st.DirectDumped != 0 {
						t.Errorf("with a window %t: %d blocks were dumped directly", window, st.DirectDumped)
					}
					if f := r.direct.files.Stats(); f.Handles.Registrations+f.Handles.Hits != 7 || window == (f.Handles.Hits == 0) || f.Bytes != 7*r.format.Layout.DataBytes()+f.Writes*r.format.Layout.ImageBytes() {
						t.Errorf("files: %+v", f)
					}
				}
			}
		}
	}
}

// The completions of a load report the path of direct reads and their reason.
func TestDirectReadsAreReported(t *testing.T) {
	t.Parallel()
	r, _, _ := newDirectRig(t, rigOptions{window: true}, 1, 2)
	l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(0, 1, 2), store.LoadOptions{})
	r.must(err)
	r.must(l.Wait(r.ctx()))
	read := int64(0)
	for _, c := range l.Paths() {
		if c.Path == stream.PathCuFile {
			if c.Reason != "simulated" || c.Finished.Before(c.Started) || c.Started.IsZero() {
				t.Errorf("completion %+v", c)
			}
			read += c.Bytes
		} else if c.Path != stream.PathKernel || !c.Summed {
			t.Errorf("completion %+v", c)
		}
	}
	if want := 2 * r.format.Layout.ImageBytes(); read != want {
		t.Errorf("%d bytes were read directly, want %d", read, want)
	}
	for _, p := range r.st.Stats().LoadPaths {
		if p.Path == stream.PathCuFile && p.Bytes != read {
			t.Errorf("the path's figures have %d bytes, want %d", p.Bytes, read)
		}
	}
}

// In a store with a cache, the first request of a block reads it directly. The second request
// brings it to the cache, where the third finds it.
func TestDirectBlockIsPromotedAtItsSecondRequest(t *testing.T) {
	t.Parallel()
	r, c, _ := newDirectRig(t, rigOptions{}, 1)
	r.mustLoad(1)
	r.wantDirect(1, 0)
	c.want(t, 0, 0)
	r.mustLoad(1)
	r.wantDirect(1, 0)
	c.want(t, 1, 0)
	r.mustLoad(1)
	c.want(t, 0, 0)
	if hits := r.st.Stats().Tiers[0].Hits; hits != 1 {
		t.Errorf("%d hits in the cache, want 1", hits)
	}
}

// LoadOptions.Promotion decides whether a load brings its blocks to the cache, independently of
// earlier requests.
func TestPromotionIsTheLoads(t *testing.T) {
	t.Parallel()
	r, c, _ := newDirectRig(t, rigOptions{}, 1, 2)
	load := func(n int, p store.Promotion) {
		t.Helper()
		l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(0, n), store.LoadOptions{Promotion: p})
		r.must(err)
		r.must(l.Wait(r.ctx()))
		for _, c := range l.Paths() {
			if c.GivenUp != nil {
				t.Errorf("completion %+v", c)
			}
		}
	}
	for range 3 {
		load(1, store.PromoteNone)
	}
	r.wantDirect(3, 0)
	load(2, store.PromoteAll)
	r.wantDirect(3, 0)
	c.want(t, 1, 0)
	r.mustLoad(2)
	c.want(t, 0, 0)
}

// A damaged file is detected on the page, on every path.
func TestDefectDamagedFileReadDirectly(t *testing.T) {
	t.Parallel()
	for _, require := range []bool{false, true} {
		for _, layerwise := range []bool{false, true} {
			r, c, reports := newDirectRig(t, rigOptions{window: true, direct: &directOptions{model: sim.StorageModel{Aligned: true}, require: require}}, 1, 2)
			r.flipFile(1, 1)
			errs := r.load(store.LoadOptions{Layerwise: layerwise}, 1, 2)
			wantErr(t, errs[0], errdefs.ErrCorrupt)
			r.must(errs[1])
			c.want(t, 0, 1) // the CPU examines the damaged block
			reports.want(t, "file")
			if st := r.st.Stats(); st.Mismatches != 1 || st.Tiers[1].Tier.Quarantined != 1 || st.Tiers[1].Tier.Errors != 0 {
				t.Errorf("%d mismatches, %d set aside, %d errors", st.Mismatches, st.Tiers[1].Tier.Quarantined, st.Tiers[1].Tier.Errors)
			}
			if n := r.direct.files.Stats().Handles.Open; n != 1 {
				t.Errorf("%d files are open: that in quarantine must not be", n)
			}
			wantErr(t, r.load(store.LoadOptions{}, 1)[0], errdefs.ErrNotFound)
			r.wantDirect(2, 0)
			r.dump(1)
			r.mustLoad(1, 2)
		}
	}
}

// If cuFile returns wrong bytes, the load detects them and still returns the right bytes.
func TestDefectDirectReadIsWrong(t *testing.T) {
	t.Parallel()
	r, c, reports := newDirectRig(t, rigOptions{window: true}, 1, 2, 3)
	for n := range 6 {
		r.plan.Clear()
		r.plan.Add(fault.Nth(sim.OpFileRead, int(r.plan.Seen(sim.OpFileRead))+n%3).Corrupt())
		for _, err := range r.load(store.LoadOptions{Layerwise: n%2 == 1}, 1, 2, 3) {
			r.must(err)
		}
	}
	c.want(t, 0, 6)
	reports.want(t, "file", "file", "file", "file", "file", "file")
	r.wantDirect(18, 0)
}

// A registration or a transfer that fails or is short affects one block only. That block is read
// through host memory, or fails if direct storage is required.
func TestDirectFailureIsItsBlocks(t *testing.T) {
	t.Parallel()
	for _, require := range []bool{false, true} {
		for _, queues := range []int{0, 1} {
			for name, f := range map[string]struct {
				op   string
				rule func(r fault.Rule) fault.Rule
			}{
				"registration": {sim.OpFileRegister, func(r fault.Rule) fault.Rule { return r.Fail(nil) }},
				"transfer":     {sim.OpFileRead, func(r fault.Rule) fault.Rule { return r.Fail(nil) }},
				"short":        {sim.OpFileRead, func(r fault.Rule) fault.Rule { return r.Partial(nil) }},
			} {
				r, c, reports := newDirectRig(t, rigOptions{window: true, direct: &directOptions{
					model: sim.StorageModel{Aligned: true}, require: require, queues: queues,
				}}, 1, 2, 3)
				for n := range 3 {
					r.plan.Add(f.rule(fault.Nth(f.op, int(r.plan.Seen(f.op))+n)))
					before := r.plan.Injected()
					failed := 0
					for _, err := range r.load(store.LoadOptions{Layerwise: n == 1}, 1, 2, 3) {
						if err != nil {
							wantErr(t, err, tier.ErrDirectFailed)
							failed++
						}
					}
					want := 0
					if require {
						want = 1
					}
					if faults := r.plan.Injected() - before; failed != want || faults != 1 {
						t.Errorf("require %t, %s: %d of 3 blocks failed, want %d; %d faults", require, name, failed, want, faults)
					}
					r.plan.Clear()
					r.closeStore()
					r.openStore()
				}
				if require {
					c.want(t, 0, 0)
				} else {
					c.want(t, 3, 0)
				}
				reports.want(t)
			}
		}
	}
}

// A direct read has no host memory in which the CPU could sum the block. Without checksums from the
// copy the block is read again through the cache.
func TestDirectBlockWithoutSumsIsReadAgain(t *testing.T) {
	t.Parallel()
	r, c, _ := newDirectRig(t, rigOptions{window: true, sumEvery: noSums}, 1, 2)
	r.mustLoad(1, 2)
	c.want(t, 0, 2)
	if st := r.st.Stats(); st.VerifiedOnWay != 0 || st.VerifiedByCPU != 2 || st.Mismatches != 0 {
		t.Errorf("%d blocks verified on their way, %d by the CPU, %d mismatches", st.VerifiedOnWay, st.VerifiedByCPU, st.Mismatches)
	}
}

// A load whose pages are not whole leaves, or with another verify policy, uses host memory and
// reports the reason.
func TestLoadsThatCannotBeDirect(t *testing.T) {
	t.Parallel()
	for _, policy := range []store.VerifyPolicy{store.VerifyAlways, store.VerifyFill} {
		r, _, _ := newDirectRig(t, rigOptions{window: true, tune: func(c *store.Config) { c.Verify = policy }}, 1)
		l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(0, 1), store.LoadOptions{})
		r.must(err)
		r.must(l.Wait(r.ctx()))
		r.wantDirect(0, 0)
		if p := l.Paths(); p[0].Path != stream.PathNone || p[0].GivenUp == nil {
			t.Errorf("the first completion is %+v", p[0])
		}
	}
}

// A load of more blocks than there are slots of device memory is read in several batches.
func TestDirectSlotsAreShared(t *testing.T) {
	t.Parallel()
	ns := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	r, _, _ := newDirectRig(t, rigOptions{window: true, pages: 64, direct: &directOptions{model: sim.StorageModel{Aligned: true}, slots: 4, handles: 3}}, ns...)
	done := make(chan error, 4)
	for k := range 4 {
		go func() {
			l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(16*k, ns...), store.LoadOptions{Layerwise: k%2 == 0})
			if err == nil {
				err = l.Wait(r.ctx())
			}
			for i, n := range ns {
				err = errors.Join(err, r.checkPage(uint32(16*k+i), n))
			}
			done <- err
		}()
	}
	for range 4 {
		r.must(<-done)
	}
	r.wantDirect(48, 0)
	if h := r.direct.files.Stats().Handles; h.Open > 3 {
		t.Errorf("%d files are kept open, 3 may be", h.Open)
	}
}

// A load by layers that has more blocks than slots reports that its layers are complete late.
func TestLoadLargerThanTheDirectSlotsReportsIt(t *testing.T) {
	t.Parallel()
	r, _, _ := newDirectRig(t, rigOptions{window: true, pages: 32}, 1, 2, 3, 4, 5, 6)
	for blocks, late := range map[int]bool{4: false, 6: true} {
		for _, layerwise := range []bool{false, true} {
			l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(8, []int{1, 2, 3, 4, 5, 6}[:blocks]...), store.LoadOptions{Layerwise: layerwise})
			r.must(err)
			r.must(l.Wait(r.ctx()))
			for _, c := range l.Paths() {
				if c.Path == stream.PathCuFile && strings.Contains(c.Reason, "more blocks than the memory") != (late && layerwise) {
					t.Errorf("%d blocks in 4 slots, layerwise %t: %q", blocks, layerwise, c.Reason)
				}
			}
		}
	}
}

// Misses and blocks that are read into the cache on purpose do not count as fallbacks: no
// completion reports them.
func TestUsualBlocksAreNoFallbacks(t *testing.T) {
	t.Parallel()
	r, _, _ := newDirectRig(t, rigOptions{}, 1)
	for range 3 {
		l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(0, 1, 2), store.LoadOptions{})
		r.must(err)
		wantErr(t, l.Wait(r.ctx()), errdefs.ErrNotFound)
		for _, c := range l.Paths() {
			if c.GivenUp != nil {
				t.Errorf("completion %+v", c)
			}
		}
	}
	if st := r.st.Stats(); st.Fallbacks != 0 || st.PathsGivenUp != 0 || st.Direct != 1 {
		t.Errorf("%d fallbacks, %d paths given up, %d blocks read directly", st.Fallbacks, st.PathsGivenUp, st.Direct)
	}
}

// In a store without a cache, dumps write files from device memory. Their pages are free early, and
// the blocks are found after they are durable.
func TestDumpsWriteDirectly(t *testing.T) {
	t.Parallel()
	for _, queues := range []int{0, 2} {
		for _, groups := range []int{1, 2} {
			r, _, reports := newDirectRig(t, rigOptions{window: true, groups: groups, pages: 64, direct: &directOptions{model: sim.StorageModel{Aligned: true}, queues: queues}})
			ns := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12} // more blocks than there are slots
			d := r.startDump(ns...)
			r.must(d.SourceFree(r.ctx()))
			for i := range ns {
				r.poison(uint32(i))
			}
			r.must(d.Published(r.ctx()))
			r.wantHits(true, ns...)
			r.must(d.Durable(r.ctx()))
			st := r.st.Stats()
			if st.DirectDumped != 12 || st.Dumped != 12 || st.DirectFailed != 0 {
				t.Errorf("%d of %d blocks were written directly, %d attempts failed", st.DirectDumped, st.Dumped, st.DirectFailed)
			}
			read := int64(0)
			for _, c := range d.Paths() {
				if c.Path == stream.PathCuFile {
					read++
				}
			}
			if read != 12 {
				t.Errorf("%d completions of writes, want 12", read)
			}
			if d := r.dump(ns...); d.Skipped() != 12 {
				t.Errorf("%d blocks were skipped, want 12", d.Skipped())
			}
			r.mustLoad(ns...)
			r.closeStore()
			r.openStore()
			r.mustLoad(ns...)
			reports.want(t)
			r.wantDirect(12, 0)
		}
	}
}

// A block whose direct write fails is written from pinned memory with the bytes of its page. If
// direct storage is required, the block fails.
func TestFailedDirectWriteIsItsBlocks(t *testing.T) {
	t.Parallel()
	for _, require := range []bool{false, true} {
		for name, rule := range map[string]func(r fault.Rule) fault.Rule{
			"fails": func(r fault.Rule) fault.Rule { return r.Fail(nil) }, "is short": func(r fault.Rule) fault.Rule { return r.Partial(nil) },
		} {
			for n := range 3 {
				r, _, _ := newDirectRig(t, rigOptions{window: true, direct: &directOptions{model: sim.StorageModel{Aligned: true}, require: require}})
				r.plan.Add(rule(fault.Nth(sim.OpFileWrite, int(r.plan.Seen(sim.OpFileWrite))+n)))
				d := r.startDump(1, 2, 3)
				r.must(d.SourceFree(r.ctx()))
				for i := range 3 {
					r.poison(uint32(i))
				}
				err := d.Durable(r.ctx())
				var good []int
				for i, err := range d.Errs() {
					if err == nil {
						good = append(good, i+1)
					} else {
						wantErr(t, err, tier.ErrDirectFailed)
					}
				}
				if want := map[bool]int{false: 3, true: 2}[require]; len(good) != want {
					t.Errorf("require %t, write %d %s: %d of 3 blocks were stored, want %d: %v", require, n, name, len(good), want, err)
				}
				if st := r.st.Stats(); st.DirectFailed != 1 || st.DirectDumped != 2 {
					t.Errorf("%d attempts failed, %d blocks were written directly", st.DirectFailed, st.DirectDumped)
				}
				r.mustLoad(good...)
			}
		}
	}
}

// If the copies of a direct dump have no checksums, the CPU computes them.
func TestDirectDumpWithoutSums(t *testing.T) {
	t.Parallel()
	r, _, _ := newDirectRig(t, rigOptions{window: true, sumEvery: noSums}, 1, 2, 3)
	if st := r.st.Stats(); st.DirectDumped != 0 || st.Dumped != 3 || st.DumpErrors != 0 {
		t.Errorf("%d of %d blocks were written directly, %d failed", st.DirectDumped, st.Dumped, st.DumpErrors)
	}
	r.mustLoad(1, 2, 3)
}

// A canceled dump returns its slots after the last access to them, and leaves no partly written
// block.
func TestCanceledDirectDump(t *testing.T) {
	t.Parallel()
	r, _, _ := newDirectRig(t, rigOptions{window: true})
	for k := range 20 {
		d := r.startDump(1, 2, 3, 4, 5, 6)
		if k%2 == 0 {
			r.must(d.SourceFree(r.ctx()))
		}
		d.Cancel()
		<-d.Done()
		for i, err := range d.Errs() {
			if err == nil {
				r.mustLoad(i + 1)
			} else {
				wantErr(t, err, errdefs.ErrCanceled)
			}
		}
	}
	for _, p := range []int{r.direct.pool.Stats().Lent, r.direct.dumps.Stats().Lent} {
		if p != 0 {
			t.Errorf("%d slots are still lent", p)
		}
	}
	r.dump(1, 2, 3, 4, 5, 6)
	r.mustLoad(1, 2, 3, 4, 5, 6)
}
