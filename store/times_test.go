package store_test

import (
	"testing"
	"time"

	"github.com/kvlane/kvlane/store"
)

// count returns the number of samples in l.
func count(l *store.Latency) (n int64) {
	for _, c := range l.Counts {
		n += c
	}
	return n
}

// Statistics count each operation once: tasks, their batches for each path, waits and lookups.
func TestStatsTimeWhatTheStoreDoes(t *testing.T) {
	r := newRig(t, rigOptions{dirs: []string{t.TempDir()}})
	r.dump(0, 1, 2)
	r.hits(0, 1)
	lease, err := r.st.LeasePrefix(r.ctx(), r.keys(0, 1, 2), time.Minute)
	r.must(err)
	lease.Release()
	_, err = r.st.Drop(r.ctx(), r.keys(2))
	r.must(err)
	r.mustLoad(0, 1, 2)
	st := r.st.Stats()
	batches := int64(0)
	for _, paths := range [][]store.PathStats{st.LoadPaths, st.DumpPaths} {
		for i := range paths {
			p := &paths[i]
			if n := p.Batches; n == 0 || count(&p.Copied) != n || count(&p.Queued) != n || p.Copied.Sum <= 0 {
				t.Errorf("%d batches by %v: %+v, %+v", n, p.Path, p.Copied, p.Queued)
			}
			batches += p.Batches
		}
	}
	if batches < 2 {
		t.Errorf("%d batches", batches)
	}
	for what, c := range map[string]struct {
		times *store.Latency
		n     int64
	}{
		"loads": {&st.LoadTimes, st.Loads}, "free": {&st.FreeTimes, st.Dumps}, "durable": {&st.DurableTimes, st.Dumps},
		"leases": {&st.LeaseTimes, 1}, "lookups": {&st.LookupTimes, 1},
		"turns": {&st.TaskWaits, st.Loads + st.Dumps}, "reads": {&st.ReadWaits, 1}, "writes": {&st.WriteWaits, 3},
	} {
		if c.n == 0 || count(c.times) != c.n {
			t.Errorf("%s: %d times of %d", what, count(c.times), c.n)
		}
	}
	if st.LoadTimes.Sum <= 0 || st.FreeTimes.Sum <= 0 || st.DurableTimes.Sum < st.FreeTimes.Sum {
		t.Errorf("loads lasted %v, dumps %v and %v", st.LoadTimes.Sum, st.FreeTimes.Sum, st.DurableTimes.Sum)
	}
}
