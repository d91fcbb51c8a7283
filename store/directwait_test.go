package store_test

import (
	"testing"

	"github.com/kvlane/kvlane/store"
)

// Layerwise dumps and dumps that follow recorded work also write directly. They copy in chunks that
// use a part of the slots.
func TestWaitingDumpsWriteDirectly(t *testing.T) {
	t.Parallel()
	for _, layerwise := range []bool{false, true} {
		r, _, reports := newDirectRig(t, rigOptions{window: true, pages: 64})
		ns := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10} // more blocks than there are slots
		for i, n := range ns {
			r.fill(uint32(i), n)
		}
		w := r.recordWork(60, 60)
		d := r.dumpAfter(w, layerwise, ns...)
		w.end()
		r.must(d.SourceFree(r.ctx()))
		for i := range ns {
			r.poison(uint32(i))
		}
		r.must(d.Durable(r.ctx()))
		for _, c := range d.Paths() {
			if c.GivenUp != nil {
				t.Errorf("completion %+v", c)
			}
		}
		if st := r.st.Stats(); st.DirectDumped != int64(len(ns)) || st.DirectFailed != 0 {
			t.Errorf("%d of %d blocks were written directly, %d failed", st.DirectDumped, len(ns), st.DirectFailed)
		}
		r.mustLoad(ns...)
		reports.want(t)
		r.wantDirect(int64(len(ns)), 0)
	}
}

// Layerwise dumps that wait for their shards leave slots for other dumps.
func TestWaitingDirectDumpsLeaveSlots(t *testing.T) {
	t.Parallel()
	r, _, _ := newDirectRig(t, rigOptions{window: true, pages: 32})
	ns := make([]int, 24)
	for i := range ns {
		ns[i] = i + 1
		r.fill(uint32(i), ns[i])
	}
	var waiting []*store.DumpTask
	for k := range 3 {
		d, err := r.st.Dump(r.ctx(), r.pages, r.refs(6*k, ns[6*k:6*k+6]...), store.DumpOptions{Layerwise: true})
		r.must(err)
		waiting = append(waiting, d)
	}
	r.eventually(func() bool { return r.direct.dumps.Stats().Lent == 2 })
	other, err := r.st.Dump(r.ctx(), r.pages, r.refs(18, ns[18:]...), store.DumpOptions{})
	r.must(err)
	r.must(other.Durable(r.ctx()))
	if lent := r.direct.dumps.Stats().Lent; lent != 2 {
		t.Errorf("dumps that wait hold %d of 4 slots", lent)
	}
	for _, d := range waiting {
		for k := range r.o.shards {
			r.must(d.SubmitShard(r.ctx(), k))
		}
	}
	for _, d := range waiting { // any two of them hold the slots
		r.must(d.Durable(r.ctx()))
	}
	r.mustLoad(ns[:12]...)
	r.mustLoad(ns[12:]...)
}

// If a dump could have been direct but was not, its completions give the reason.
func TestDumpThatIsNotDirectReportsIt(t *testing.T) {
	t.Parallel()
	r, _, _ := newDirectRig(t, rigOptions{window: true, tune: func(c *store.Config) { c.Verify = store.VerifyAlways }})
	d := r.dump(1)
	if p := d.Paths(); len(p) == 0 || p[0].GivenUp == nil || r.st.Stats().DirectDumped != 0 {
		t.Errorf("completions %+v, %d blocks written directly", p, r.st.Stats().DirectDumped)
	}
}
