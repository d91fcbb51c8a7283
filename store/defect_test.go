package store_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/tier"
)

// Each test of this file reproduces a defect that was seen in a store of KV-cache blocks.

// hookTier is a tier whose Get and Put a test can replace.
type hookTier struct {
	tier.Tier
	get func(ctx context.Context, key block.Key, dst mem.Extent) error
	put func(ctx context.Context, key block.Key, src mem.Extent) error
}

func (h *hookTier) Get(ctx context.Context, key block.Key, dst mem.Extent) error {
	if h.get != nil {
		return h.get(ctx, key, dst)
	}
	return h.Tier.Get(ctx, key, dst)
}

func (h *hookTier) Put(ctx context.Context, key block.Key, src mem.Extent) error {
	if h.put != nil {
		return h.put(ctx, key, src)
	}
	return h.Tier.Put(ctx, key, src)
}

func wantErr(t *testing.T, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Fatalf("error is %v, want one that wraps %q", err, w)
		}
	}
}

func (r *rig) wantHits(ready bool, ns ...int) {
	r.tb.Helper()
	for i, h := range r.hits(ns...) {
		if (h.State == tier.Ready) != ready {
			r.tb.Fatalf("block %d is %s (tier %q), want ready: %v", ns[i], h.State, h.Tier, ready)
		}
	}
}

func TestDefect01FailedBlockReportsNoHit(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	r.fill(0, 1)
	r.plan.Add(r.next(sim.OpWork, fault.Nth).Fail(nil))
	d, err := r.st.Dump(r.ctx(), r.pages, r.refs(0, 1), store.DumpOptions{})
	r.must(err)
	wantErr(t, d.Durable(r.ctx()), fault.ErrInjected)
	r.wantHits(false, 1)
	l, err := r.st.LeasePrefix(r.ctx(), r.keys(1), 0)
	r.must(err)
	if l.Len() != 0 {
		t.Fatal("a block whose dump failed was leased")
	}
	l.Release()
	wantErr(t, r.load(store.LoadOptions{}, 1)[0], errdefs.ErrNotFound)
}

func TestDefect01EvictedBlockReportsNoHit(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{slots: 4})
	for n := range 12 {
		r.dump(n)
	}
	ready := 0
	for n, h := range r.hits(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11) {
		err := r.load(store.LoadOptions{}, n)[0]
		if h.State == tier.Ready {
			ready++
			r.must(err)
		} else {
			wantErr(t, err, errdefs.ErrNotFound)
		}
	}
	if ready == 0 || ready > 4 {
		t.Fatalf("%d blocks are ready in 4 slots", ready)
	}
}

func TestDefect01LookupCountsEveryShard(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	r.fill(0, 1)
	d, err := r.st.Dump(r.ctx(), r.pages, r.refs(0, 1), store.DumpOptions{Layerwise: true})
	r.must(err)
	// Two shards are copied; the copy of the last one fails.
	base := r.plan.Seen(sim.OpWork)
	for k := range 2 {
		r.must(d.SubmitShard(r.ctx(), k))
		r.awaitSeen(sim.OpWork, base+1+int64(k))
	}
	r.plan.Add(r.next(sim.OpWork, fault.Nth).Fail(nil))
	r.must(d.SubmitShard(r.ctx(), 2))
	wantErr(t, d.Durable(r.ctx()), fault.ErrInjected)
	r.wantHits(false, 1)
}

// awaitSeen waits until the device has started n operations named op.
func (r *rig) awaitSeen(op string, n int64) {
	r.tb.Helper()
	for deadline := time.Now().Add(patience); r.plan.Seen(op) < n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.tb.Fatalf("the device has started %d operations %q, want %d", r.plan.Seen(op), op, n)
		}
	}
}

func TestDefect02WaiterIsServedWhenTheLoaderDies(t *testing.T) {
	t.Parallel()
	hook := &hookTier{}
	r := newRig(t, rigOptions{dirs: []string{t.TempDir()}, wrapFile: func(next tier.Tier) tier.Tier { hook.Tier = next; return hook }})
	r.dump(1)
	r.must(r.cache.Delete(r.ctx(), r.key(1)))

	reading := make(chan struct{})
	first := make(chan struct{}, 1)
	first <- struct{}{}
	hook.get = func(ctx context.Context, key block.Key, dst mem.Extent) error {
		select {
		case <-first: // the loader hangs until it is canceled
			close(reading)
			<-ctx.Done()
			return context.Cause(ctx)
		default:
			return hook.Tier.Get(ctx, key, dst)
		}
	}
	loader, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(0, 1), store.LoadOptions{})
	r.must(err)
	<-reading
	waiter, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(1, 1), store.LoadOptions{})
	r.must(err)
	if !unresolved(waiter.Done()) {
		t.Fatal("the waiter did not wait for the loader")
	}
	loader.Cancel()
	wantErr(t, r.loaded(loader)[0], errdefs.ErrCanceled)
	r.must(r.loaded(waiter)[0])
	r.must(r.checkPage(1, 1))
}

func TestDefect03AllocationEndsWhenEverySlotIsPinned(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	r := newRig(t, rigOptions{slots: 4, clock: clock, tune: func(c *store.Config) { c.WaitMax = time.Minute }})
	r.dump(0, 1, 2, 3)
	var pins []tier.Slot
	for n := range 4 {
		sl, err := r.cache.Open(r.ctx(), r.key(n))
		r.must(err)
		pins = append(pins, sl)
	}
	d := r.startDump(7)
	r.must(clock.BlockUntilContext(r.ctx(), storeTimers+1)) // the last timer is the wait for a slot
	if !unresolved(d.Done()) {
		t.Fatal("the dump resolved without a slot")
	}
	clock.Advance(time.Minute)
	wantErr(t, d.Durable(r.ctx()), errdefs.ErrBusy)
	r.must(d.SourceFree(r.ctx()))
	for _, sl := range pins {
		sl.Release()
	}
	r.dump(7)
	r.wantHits(true, 7)
}

func TestDefect04FailedLoadIsNotDoneBeforeItsDMAStopped(t *testing.T) {
	t.Parallel()
	for _, layerwise := range []bool{false, true} {
		r := newRig(t, rigOptions{})
		r.dump(1, 2)
		r.poison(0)
		r.poison(1)
		faults := r.plan.Injected()
		r.plan.Add(r.next(sim.OpWork, fault.Nth).Stall())
		l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(0, 1, 2), store.LoadOptions{Layerwise: layerwise})
		r.must(err)
		r.must(r.plan.Await(r.ctx(), faults+1))
		l.Cancel()
		if !unresolved(l.Done()) {
			t.Fatal("a canceled load was done while a copy to its pages was still running")
		}
		if l.Errs() != nil {
			t.Fatal("a running load returned results")
		}
		r.plan.Release()
		r.loaded(l)
		// From here on the pages belong to another owner.
		r.poison(0)
		r.poison(1)
		time.Sleep(10 * time.Millisecond)
		if !r.poisoned(0) || !r.poisoned(1) {
			t.Fatal("a load wrote to its pages after it was done")
		}
		r.mustLoad(1, 2)
	}
}

func TestDefect05AbandonedReadDoesNotWriteToAReusedSlot(t *testing.T) {
	t.Parallel()
	hook := &hookTier{}
	r := newRig(t, rigOptions{slots: 2, dirs: []string{t.TempDir()}, wrapFile: func(next tier.Tier) tier.Tier { hook.Tier = next; return hook }})
	r.dump(1)
	r.must(r.cache.Delete(r.ctx(), r.key(1)))

	// The read hangs in the kernel, like a read from a dead NFS server. It ignores its context and
	// writes late.
	reading, thaw := make(chan struct{}), make(chan struct{})
	hook.get = func(_ context.Context, key block.Key, dst mem.Extent) error {
		close(reading)
		<-thaw
		return hook.Tier.Get(context.Background(), key, dst)
	}
	l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(0, 1), store.LoadOptions{})
	r.must(err)
	<-reading
	l.Cancel()
	if !unresolved(l.Done()) {
		t.Fatal("a load was done while a read into its slot was still running")
	}
	// Meanwhile more blocks than there are slots pass through the cache. None may get the slot that
	// the read still writes to.
	for n := 10; n < 16; n++ {
		r.dump(n)
	}
	last := r.hits(15)[0]
	close(thaw)
	r.loaded(l)
	hook.get = nil
	if last.State == tier.Ready {
		r.mustLoad(15)
	}
	r.mustLoad(10, 11, 12, 13, 14)
	if n := r.st.Stats().Mismatches; n != 0 {
		t.Fatalf("%d blocks failed their check: something wrote to their slots", n)
	}
}

func TestDefect06DumpDoesNotSkipABlockThatItsHolderNeverStores(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{dirs: []string{t.TempDir()}})
	r.fill(0, 1)
	faults := r.plan.Injected()
	r.plan.Add(r.next(sim.OpWork, fault.Nth).Stall())
	holder, err := r.st.Dump(r.ctx(), r.pages, r.refs(0, 1), store.DumpOptions{})
	r.must(err)
	r.must(r.plan.Await(r.ctx(), faults+1))
	second, err := r.st.Dump(r.ctx(), r.pages, r.refs(0, 1), store.DumpOptions{})
	r.must(err)
	if !unresolved(second.Done()) {
		t.Fatal("a dump answered while another held its block unfinished")
	}
	holder.Cancel()
	// The device still reads the page of the canceled dump, but the dump no longer blocks its key:
	// other tasks may store the block.
	if !unresolved(holder.Done()) {
		t.Fatal("the canceled dump was done while its page was still being read")
	}
	r.plan.Release()
	wantErr(t, holder.Durable(r.ctx()), errdefs.ErrCanceled)
	r.must(second.Durable(r.ctx()))
	if second.Skipped() != 0 {
		t.Fatal("the second dump counts a block as skipped that no other task stored")
	}
	r.closeStore()
	r.openStore()
	r.mustLoad(1)
}

func TestDefect06DumpIsNotDurableBeforeItIs(t *testing.T) {
	t.Parallel()
	hook := &hookTier{}
	unblock := make(chan struct{})
	var failed []string
	r := newRig(t, rigOptions{
		dirs:     []string{t.TempDir()},
		wrapFile: func(next tier.Tier) tier.Tier { hook.Tier = next; return hook },
		tune: func(c *store.Config) {
			c.Hooks.LeftOut = func(tr string, _ block.Key, _ error) { failed = append(failed, tr) }
		},
	})
	hook.put = func(context.Context, block.Key, mem.Extent) error { <-unblock; return errdefs.ErrNoSpace }
	d := r.startDump(1)
	r.must(d.SourceFree(r.ctx()))
	if !unresolved(d.Done()) {
		t.Fatal("a dump was durable while its write was still running")
	}
	close(unblock)
	wantErr(t, d.Durable(r.ctx()), errdefs.ErrNoSpace)
	wantErr(t, d.Errs()[0], errdefs.ErrNoSpace)
	if n := r.st.Stats().Tiers[1].LeftOut; n != 1 || len(failed) != 1 || failed[0] != "file" {
		t.Fatalf("%d failed writes counted, reported to the hook: %v", n, failed)
	}
	// The block is still cached. A later dump writes it to the file tier without a copy from the
	// device.
	hook.put = nil
	if d := r.dump(1); d.Skipped() != 1 {
		t.Fatalf("the second dump skipped %d blocks, want 1", d.Skipped())
	}
	r.closeStore()
	r.openStore()
	r.mustLoad(1)
}

// A block was published when the shard with the last index completed, even if others were missing.
// Shards may complete in any order, and the block is complete when all of them are.
func TestDefectPublishedWhenLastIndexShardLands(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	for missing := range r.o.shards {
		r.fill(0, 10+missing)
		d, err := r.st.Dump(r.ctx(), r.pages, r.refs(0, 10+missing), store.DumpOptions{Layerwise: true})
		r.must(err)
		written := 0
		for k := r.o.shards - 1; k >= 0; k-- {
			if k != missing {
				r.must(d.SubmitShard(r.ctx(), k))
				written++
				r.eventually(func() bool { return len(d.Paths()) == written })
			}
		}
		ctx, cancel := context.WithTimeout(r.ctx(), 20*time.Millisecond)
		defer cancel()
		wantErr(t, d.Published(ctx), context.DeadlineExceeded)
		if h := r.hits(10 + missing)[0]; h.State != tier.Filling {
			t.Fatalf("without shard %d the block is %s", missing, h.State)
		}
		r.must(d.SubmitShard(r.ctx(), missing))
		r.must(d.Durable(r.ctx()))
		r.mustLoad(10 + missing)
	}
}
