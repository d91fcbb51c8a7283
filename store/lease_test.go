package store_test

import (
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/store"
)

func TestLeaseEndsAtItsDeadline(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	r := newRig(t, rigOptions{clock: clock, dirs: []string{t.TempDir()}})
	r.dump(1, 2)
	l, err := r.st.LeasePrefix(r.ctx(), r.keys(1, 2, 3), time.Second)
	r.must(err)
	if l.Len() != 2 || l.Tier(0) != "cache" || !l.Deadline().Equal(clock.Now().Add(time.Second)) {
		t.Fatalf("leased %d blocks until %v", l.Len(), l.Deadline())
	}
	wantErr(t, r.cache.Delete(r.ctx(), r.key(1)), errdefs.ErrBusy)
	faults := r.plan.Injected()
	r.plan.Add(r.next(sim.OpWork, fault.Nth).Stall())
	running, err := r.st.Load(r.ctx(), l, r.pages, r.refs(0, 1), store.LoadOptions{})
	r.must(err)
	r.must(r.plan.Await(r.ctx(), faults+1))
	r.must(clock.BlockUntilContext(r.ctx(), storeTimers))
	clock.Advance(time.Second)
	_, err = r.st.Load(r.ctx(), l, r.pages, r.refs(1, 2), store.LoadOptions{})
	wantErr(t, err, errdefs.ErrExpired)
	// A load that uses the expired lease continues, and its blocks stay pinned.
	wantErr(t, r.cache.Delete(r.ctx(), r.key(1)), errdefs.ErrBusy)
	r.plan.Release()
	r.must(r.loaded(running)[0])
	r.must(r.checkPage(0, 1))
	r.eventually(func() bool { return r.cache.Stats().Retained == 0 })
	r.must(r.cache.Delete(r.ctx(), r.key(1)))
	l.Release()
	l.Release()
	if st := r.st.Stats(); st.LeasesExpired != 1 || st.LeasesLive != 0 {
		t.Fatalf("%d leases expired and %d live", st.LeasesExpired, st.LeasesLive)
	}
}

func TestLeasesLeaveSlotsToOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{slots: 4, dirs: []string{t.TempDir()}})
	r.dump(0, 1, 2, 3)
	l, err := r.st.LeasePrefix(r.ctx(), r.keys(0, 1, 2, 3), 0)
	r.must(err)
	defer l.Release()
	in := map[string]int{}
	for i := range l.Len() {
		in[l.Tier(i)]++
	}
	if l.Len() != 4 || in["cache"] > 3 || in["file"] == 0 {
		t.Fatalf("leased %v; one slot of four should be left, and the file tier serve", in)
	}
	again, err := r.st.LeasePrefix(r.ctx(), r.keys(0), 0)
	r.must(err)
	if again.Len() != 1 || again.Tier(0) != l.Tier(0) {
		t.Fatal("a slot with several leases counts once")
	}
	again.Release()
	r.dump(4, 5, 6, 7)
	r.mustLoad(4, 5, 6, 7)
	task, err := r.st.Load(r.ctx(), l, r.pages, r.refs(0, 0, 1, 2, 3), store.LoadOptions{})
	r.must(err)
	r.must(task.Wait(r.ctx()))
}

func TestLeaseOfAnOldStoreIsNotUsedAfterRelease(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	r.dump(1)
	l, err := r.st.LeasePrefix(r.ctx(), r.keys(1), 0)
	r.must(err)
	l.Release()
	_, err = r.st.Load(r.ctx(), l, r.pages, r.refs(0, 1), store.LoadOptions{})
	wantErr(t, err, errdefs.ErrExpired)
}
