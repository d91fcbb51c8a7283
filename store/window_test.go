package store_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/tier"
)

// newWindow returns a store without a cache, whose blocks only pass through slots. If put is not
// nil, it replaces Put of the file tier.
func newWindow(t *testing.T, o rigOptions, put func(inner tier.Tier) func(context.Context, block.Key, mem.Extent) error) *rig {
	t.Helper()
	o.window, o.dirs = true, []string{t.TempDir()}
	if put != nil {
		o.wrapFile = func(next tier.Tier) tier.Tier { return &hookTier{Tier: next, put: put(next)} }
	}
	return newRig(t, o)
}

func (r *rig) wantEmptyWindow() {
	r.tb.Helper()
	if st := r.cache.Stats(); st.Blocks != 0 || st.Retained != 0 {
		r.tb.Errorf("%d blocks and %d pins are in the window, want none", st.Blocks, st.Retained)
	}
}

// Stored blocks are found in the lower tier any number of times, and no slot keeps a block.
func TestWindowKeepsNothing(t *testing.T) {
	t.Parallel()
	r := newWindow(t, rigOptions{}, nil)
	r.dump(1, 2, 3)
	r.wantEmptyWindow()
	for range 3 {
		for _, hit := range r.hits(1, 2, 3) {
			if hit.State != tier.Ready || hit.Tier != "file" {
				t.Errorf("a block is %s in %q, want it in the file tier", hit.State, hit.Tier)
			}
		}
		r.mustLoad(1, 2, 3, 1)
		p, err := r.st.Prefetch(r.ctx(), r.keys(1, 2, 3))
		r.must(err)
		r.must(p.Wait(r.ctx()))
		r.wantEmptyWindow()
	}
	if st := r.st.Stats(); st.Tiers[0].Name != "window" || st.Tiers[1].Hits < 9 || st.Prefetched != 0 {
		t.Errorf("tier %q; %d of 12 hits are the file tier's; %d were prefetched", st.Tiers[0].Name, st.Tiers[1].Hits, st.Prefetched)
	}
	if d := r.dump(1, 2, 3, 4); d.Skipped() != 3 {
		t.Errorf("%d of 3 blocks that are there were skipped", d.Skipped())
	}
}

// A block that is not yet written to the file tier is found in its slot.
func TestWindowHasWhatIsNotDurableYet(t *testing.T) {
	t.Parallel()
	write := make(chan struct{})
	r := newWindow(t, rigOptions{}, func(inner tier.Tier) func(context.Context, block.Key, mem.Extent) error {
		return func(ctx context.Context, key block.Key, src mem.Extent) error {
			<-write
			return inner.Put(ctx, key, src)
		}
	})
	d := r.startDump(1, 2)
	r.must(d.Published(r.ctx()))
	r.wantHits(true, 1, 2)
	lease, err := r.st.LeasePrefix(r.ctx(), r.keys(1, 2), 0)
	r.must(err)
	if lease.Len() != 2 || lease.Tier(0) != "window" {
		t.Errorf("%d blocks are leased, the first in %q", lease.Len(), lease.Tier(0))
	}
	r.mustLoad(1, 2)
	close(write)
	r.must(d.Durable(r.ctx()))
	// A leased block stays in its slot.
	l, err := r.st.Load(r.ctx(), lease, r.pages, r.refs(4, 1, 2), store.LoadOptions{})
	r.must(err)
	r.must(l.Wait(r.ctx()))
	lease.Release()
	r.wantEmptyWindow()
	r.mustLoad(1, 2)
}

// Whole and layerwise loads and dumps, of equal and of different blocks, can all run with two
// slots, the minimum.
func TestWindowOfTwoSlotsIsShared(t *testing.T) {
	t.Parallel()
	const tasks, each, rounds = 6, 5, 4
	r := newWindow(t, rigOptions{slots: 2, pages: 2 * tasks * each}, nil)
	hot := []int{1, 2, 3, 4, 5}
	r.dump(hot...)
	var g errgroup.Group
	for k := range tasks {
		g.Go(func() error { // all goroutines use the same blocks
			first := k * each
			for n := range rounds {
				l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(first, hot...), store.LoadOptions{Layerwise: n%2 == 1})
				if err == nil {
					err = l.Wait(r.ctx())
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		g.Go(func() error { // one other goroutine dumps the same blocks
			first := (tasks + k) * each
			var ns []int
			for i := range each {
				ns = append(ns, 100+k/2*each+i)
			}
			for i, n := range ns {
				r.fill(uint32(first+i), n)
			}
			d, err := r.st.Dump(r.ctx(), r.pages, r.refs(first, ns...), store.DumpOptions{})
			if err != nil {
				return err
			}
			return d.Durable(r.ctx())
		})
	}
	r.must(g.Wait())
	for k := range tasks {
		for i, n := range hot {
			r.must(r.checkPage(uint32(k*each+i), n))
		}
	}
	r.wantEmptyWindow()
	for k := range tasks / 2 {
		r.mustLoad(100+k*each, 101+k*each, 102+k*each)
	}
}

// A wait for a slot ends with ErrBusy after WaitMax.
func TestWindowThatStaysFullIsBusy(t *testing.T) {
	t.Parallel()
	write := make(chan struct{})
	r := newWindow(t, rigOptions{slots: 2, tune: func(c *store.Config) { c.WaitMax = time.Second }},
		func(inner tier.Tier) func(context.Context, block.Key, mem.Extent) error {
			var later atomic.Bool
			return func(ctx context.Context, key block.Key, src mem.Extent) error {
				if later.Swap(true) {
					<-write
				}
				return inner.Put(context.WithoutCancel(ctx), key, src)
			}
		})
	r.dump(1)
	d := r.startDump(2, 3)
	r.must(d.Published(r.ctx()))
	wantErr(t, r.load(store.LoadOptions{}, 1)[0], errdefs.ErrBusy)
	r.mustLoad(2, 3) // these blocks occupy the slots
	third := r.startDump(4)
	wantErr(t, third.Durable(r.ctx()), errdefs.ErrBusy)
	close(write)
	r.must(d.Durable(r.ctx()))
	r.mustLoad(1, 2, 3)
	r.wantEmptyWindow()
}

// If all lower tiers are read-only, a store without a cache refuses dumps.
func TestWindowAboveReadOnlyTiersRefusesDumps(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := newRig(t, rigOptions{dirs: []string{dir}})
	w.dump(1)
	r := newRig(t, rigOptions{dirs: []string{dir}, readOnly: true, window: true})
	r.mustLoad(1)
	_, err := r.st.Dump(r.ctx(), r.pages, r.refs(0, 2), store.DumpOptions{})
	wantErr(t, err, errdefs.ErrReadOnly)
}

func TestWindowNeedsATierBelow(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{window: true, dirs: []string{t.TempDir()}})
	_, err := store.Open(store.Config{Formats: r.groups, Cache: r.cache, OpenLoad: r.opener(nil), OpenDump: r.opener(nil)})
	wantErr(t, err, errdefs.ErrInvalid)
}
