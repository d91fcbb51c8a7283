package store_test

import (
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/store"
)

// worth leases blocks and returns how many of them the store would load if each saved a thousand
// tokens.
func (r *rig) worth(ns ...int) int {
	r.tb.Helper()
	l, err := r.st.LeasePrefix(r.ctx(), r.keys(ns...), 0)
	r.must(err)
	defer l.Release()
	if l.Len() != len(ns) {
		r.tb.Fatalf("leased %d blocks of %d", l.Len(), len(ns))
	}
	return r.st.Worth(l, int64(len(ns))*1000, 0)
}

// drop removes blocks from the cache. The files keep them.
func (r *rig) drop(ns ...int) {
	r.tb.Helper()
	r.eventually(func() bool {
		stay, err := r.st.Drop(r.ctx(), r.keys(ns...))
		r.must(err)
		return stay == 0
	})
}

func TestBlocksAreWorthLoadingByWhatHasBeenMeasured(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{slots: 16, dirs: []string{t.TempDir()}})
	all := []int{1, 2, 3, 4}
	r.dump(all...)
	computing := func(seconds time.Duration) {
		for range 30 {
			r.st.Computed(1000, seconds)
		}
	}
	computing(time.Nanosecond)
	for range 3 {
		if n := r.worth(all...); n != len(all) {
			t.Fatalf("%d blocks in memory are worth loading before that is known", n)
		}
		r.mustLoad(all...)
	}
	if n := r.worth(all...); n != len(all) {
		t.Fatalf("the first that are refused are a probe, and %d are worth loading", n)
	}
	if n := r.worth(all...); n != 0 {
		t.Fatalf("%d blocks are worth loading that are computed in no time", n)
	}
	for range 3 {
		r.drop(all...)
		if n := r.worth(all...); n != len(all) {
			t.Fatalf("%d blocks in files are worth loading before that is known", n)
		}
		r.mustLoad(all...)
	}
	if st := r.st.Stats(); st.Admission.Probes != 1 || st.Admission.MemoryRate <= 0 || st.Admission.FileRate <= 0 || st.Admission.TokensPerSecond <= 0 {
		t.Fatalf("figures: %+v", st.Admission)
	}
	r.drop(all...)
	if n := r.worth(all...); n != 0 {
		t.Fatalf("%d blocks in files are worth loading that are computed in no time", n)
	}
	// The store probes the file tier: it prefetches some blocks to the cache.
	r.eventually(func() bool {
		return !slices.ContainsFunc(r.hits(all...), func(h store.Hit) bool { return h.Tier != "cache" })
	})
	if st := r.st.Stats(); st.Admission.Probes != 2 || st.Admission.BlocksRefused != 12 {
		t.Fatalf("figures: %+v", st.Admission)
	}
	computing(time.Hour)
	r.drop(all...)
	if n := r.worth(all...); n != len(all) {
		t.Fatalf("%d blocks are worth loading that take hours to compute", n)
	}
}

func TestEverythingIsWorthLoadingWhereThatIsAskedFor(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{dirs: []string{t.TempDir()}, tune: func(c *store.Config) { c.AdmitAlways = true }})
	r.dump(1)
	for range 5 {
		r.mustLoad(1)
		r.st.Computed(1000, time.Nanosecond)
	}
	if n := r.worth(1); n != 1 {
		t.Fatalf("%d blocks are worth loading", n)
	}
}

// Without a cache the store cannot measure files by a prefetch. So a load has to measure them.
func TestWithoutACacheALoadIsTheProbe(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{window: true, dirs: []string{t.TempDir()}})
	r.dump(1, 2)
	for range 4 {
		r.mustLoad(1, 2)
		r.st.Computed(1000, time.Nanosecond)
	}
	if n := r.worth(1, 2); n != 2 {
		t.Fatalf("%d blocks are worth loading to see how fast that is", n)
	}
	if n := r.worth(1, 2); n != 0 {
		t.Fatalf("%d blocks are worth loading right after that", n)
	}
}
