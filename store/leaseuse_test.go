package store_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store"
)

// A lease of another store does not pin blocks of this store, so Load refuses it.
func TestDefectLoadRefusesALeaseOfAnotherStore(t *testing.T) {
	t.Parallel()
	here, other := newRig(t, rigOptions{}), newRig(t, rigOptions{})
	here.dump(1)
	other.dump(1)
	l, err := other.st.LeasePrefix(other.ctx(), other.keys(1), 0)
	other.must(err)
	defer l.Release()
	_, err = here.st.Load(here.ctx(), l, here.pages, here.refs(0, 1), store.LoadOptions{})
	wantErr(t, err, errdefs.ErrInvalid)
	if !strings.Contains(err.Error(), "another store") {
		t.Error(err)
	}
}

// A lease protects only the blocks that it pins. The refs of a load may be any of these, in any
// order.
func TestDefectLoadRefusesALeaseOfOtherKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	r.dump(1, 2, 3, 4)
	l, err := r.st.LeasePrefix(r.ctx(), r.keys(1, 2, 3), 0)
	r.must(err)
	defer l.Release()
	for _, ns := range [][]int{{1, 2, 3}, {3, 1}, {2}, {}, {1, 1, 2}, {3, 2, 1}} {
		task, err := r.st.Load(r.ctx(), l, r.pages, r.refs(0, ns...), store.LoadOptions{})
		r.must(err)
		r.must(task.Wait(r.ctx()))
	}
	for _, ns := range [][]int{{4}, {1, 2, 3, 4}, {4, 1}, {1, 4, 2}} {
		_, err := r.st.Load(r.ctx(), l, r.pages, r.refs(0, ns...), store.LoadOptions{})
		wantErr(t, err, errdefs.ErrInvalid)
		if key := r.key(4).String(); !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), "lease") {
			t.Errorf("the error does not report that the lease lacks block %s: %v", key, err)
		}
		if i := slices.Index(ns, 4); !strings.Contains(err.Error(), "ref "+string(rune('0'+i))) {
			t.Errorf("the error does not name ref %d: %v", i, err)
		}
	}
	empty, err := r.st.LeasePrefix(r.ctx(), r.keys(9), 0)
	r.must(err)
	defer empty.Release()
	_, err = r.st.Load(r.ctx(), empty, r.pages, r.refs(0, 1), store.LoadOptions{})
	wantErr(t, err, errdefs.ErrInvalid)
}
