package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
)

// loadAfter starts a load of blocks to pages 0, 1, ... that depends on w.
func (r *rig) loadAfter(w mem.Dependency, layerwise bool, ns ...int) *store.LoadTask {
	r.tb.Helper()
	l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(0, ns...), store.LoadOptions{Layerwise: layerwise, After: []mem.Dependency{w}})
	r.must(err)
	return l
}

// An engine may still write to a page that it has freed, in a running step or to clear it for the
// next owner. The load must wait for that work.
func TestDefectLoadIsOverwrittenByEarlierWork(t *testing.T) {
	t.Parallel()
	for _, layerwise := range []bool{false, true} {
		r := newRig(t, rigOptions{})
		r.dump(1, 2, 3)
		w := r.recordWork(0, 9)
		l := r.loadAfter(w, layerwise, 1, 2, 3)
		if !unresolved(l.Done()) {
			t.Error("the load did not wait for the program")
		}
		r.mustLoadTo(10, 2) // another load does not wait for this dependency
		w.end()
		r.resolved(l.Done())
		for i, err := range l.Errs() {
			r.must(err)
			r.must(r.checkPage(uint32(i), i+1))
		}
		r.must(l.WaitShard(r.ctx(), r.o.shards-1))
	}
}

// mustLoadTo loads block n to a page and checks its bytes.
func (r *rig) mustLoadTo(page, n int) {
	r.tb.Helper()
	l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(page, n), store.LoadOptions{})
	r.must(err)
	r.must(l.Wait(r.ctx()))
	r.must(r.checkPage(uint32(page), n))
}

// A load whose dependency fails leaves its pages unchanged.
func TestLoadAfterWhatFails(t *testing.T) {
	t.Parallel()
	cause := errors.New("the computation failed")
	for name, tt := range map[string]struct {
		end  func(r *rig, dep *dependency, l *store.LoadTask)
		want error
	}{
		"failed":   {func(_ *rig, dep *dependency, _ *store.LoadTask) { dep.err = cause; close(dep.done) }, cause},
		"canceled": {func(_ *rig, _ *dependency, l *store.LoadTask) { l.Cancel() }, errdefs.ErrCanceled},
		"closed":   {func(r *rig, _ *dependency, _ *store.LoadTask) { r.must(r.st.Close(r.ctx())) }, errdefs.ErrClosed},
	} {
		for _, layerwise := range []bool{false, true} {
			r := newRig(t, rigOptions{})
			r.dump(1, 2)
			r.poison(0)
			r.poison(1)
			dep := &dependency{done: make(chan struct{})}
			l := r.loadAfter(dep, layerwise, 1, 2)
			tt.end(r, dep, l)
			r.resolved(l.Done())
			for i, err := range l.Errs() {
				wantErr(t, err, tt.want)
				var b *store.BlockError
				if !errors.As(err, &b) || b.Undefined || !r.poisoned(uint32(i)) {
					t.Errorf("%s: page %d was touched: %v", name, i, err)
				}
			}
		}
	}
}

// A load does not wait for a resolved dependency. A dependency that has failed fails the load.
func TestLoadAfterWhatIsOver(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	r.dump(1)
	over := &dependency{done: make(chan struct{})}
	close(over.done)
	r.must(r.loadAfter(over, false, 1).Wait(r.ctx()))
	r.must(r.checkPage(0, 1))
	over.err = errors.New("the computation failed")
	wantErr(t, r.loadAfter(over, false, 1).Wait(r.ctx()), over.err)
}

// The wait for dependencies does not count as load time. The admission policy uses load times.
func TestTimeOfALoadIsItsOwn(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	r := newRig(t, rigOptions{clock: clock})
	r.dump(1)
	dep := &dependency{done: make(chan struct{})}
	l := r.loadAfter(dep, false, 1)
	clock.Advance(time.Hour)
	close(dep.done)
	r.must(l.Wait(r.ctx()))
	if took := r.st.Stats().LoadTimes.Sum; took >= time.Minute {
		t.Errorf("the store reports %v for the load", took)
	}
}
