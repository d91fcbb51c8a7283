package store_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/faulty"
)

// The error of a block that a tier has, and does not send, has the tier's reason.
func TestAMissHasTheReasonOfItsTier(t *testing.T) {
	t.Parallel()
	plan := fault.New(1)
	r := newRig(t, rigOptions{
		dirs: []string{t.TempDir()}, wrapFile: func(tr tier.Tier) tier.Tier { return faulty.New(tr, plan, clockwork.NewRealClock()) },
	})
	r.dump(0)
	r.drop(0)
	l, err := r.st.LeasePrefix(r.ctx(), r.keys(0), 0)
	r.must(err)
	defer l.Release()
	plan.Add(fault.Nth(faulty.OpGet, 0).Fail(fmt.Errorf("%w: the disk sleeps", errdefs.ErrNotFound)))
	task, err := r.st.Load(r.ctx(), l, r.pages, r.refs(0, 0), store.LoadOptions{})
	r.must(err)
	err = r.loaded(task)[0]
	if wantErr(t, err, errdefs.ErrNotFound); !strings.Contains(err.Error(), "the disk sleeps") {
		t.Errorf("the error is %v", err)
	}
}

// Each loaded block counts as one hit of its tier, with and without a lease. A dump that finds its
// block stored is no hit. A block that no tier has is one miss.
func TestHitsCountOnceInTheTierThatServed(t *testing.T) {
	t.Parallel()
	for _, leased := range []bool{false, true} {
		r := newRig(t, rigOptions{dirs: []string{t.TempDir()}})
		check := func(what string, cache, file, misses int64) {
			t.Helper()
			st := r.st.Stats()
			for i, want := range []int64{cache, file} {
				if ts := st.Tiers[i]; ts.Hits != want || ts.Tier.Hits != want {
					t.Errorf("leased %t: %s: the store counts %d hits of %s, and the tier %d; want %d", leased, what, ts.Hits, ts.Name, ts.Tier.Hits, want)
				}
			}
			if st.Misses != misses {
				t.Errorf("leased %t: %s: %d misses, want %d", leased, what, st.Misses, misses)
			}
		}
		load := func() {
			t.Helper()
			var l *store.Lease
			n := 4
			if leased {
				var err error
				l, err = r.st.LeasePrefix(r.ctx(), r.keys(0, 1, 2, 3), 0)
				r.must(err)
				defer l.Release()
				n = l.Len()
			}
			task, err := r.st.Load(r.ctx(), l, r.pages, r.refs(0, 0, 1, 2, 3)[:n], store.LoadOptions{})
			r.must(err)
			for i, err := range r.loaded(task) {
				if i == 3 {
					wantErr(t, err, errdefs.ErrNotFound)
				} else {
					r.must(err)
				}
			}
		}
		r.dump(0, 1, 2) // no tier has block 3
		r.dump(0, 1, 2)
		check("dumped twice", 0, 0, 0)
		r.drop(0, 1, 2)
		load()
		check("from files", 0, 3, 1)
		load()
		check("from memory", 3, 3, 2)
	}
}
