package store_test

import (
	"context"
	"errors"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/faulty"
)

// beforeDelete is a tier that calls a function before each Delete.
type beforeDelete struct {
	tier.Tier
	call func(key block.Key)
}

func (b *beforeDelete) Delete(ctx context.Context, key block.Key) error {
	if b.call != nil {
		b.call(key)
	}
	return b.Tier.Delete(ctx, key)
}

// A removed block is in no tier, also after the store was opened again.
func TestRemovedBlocksAreNotFound(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{dirs: []string{t.TempDir()}, logDir: t.TempDir()})
	r.dump(0, 1, 2)
	r.drop(1)
	removed, err := r.st.Remove(r.ctx(), append(r.keys(0, 1, 3), r.key(0)))
	if err != nil || removed.Left != nil || len(removed.Keys) != 2 || removed.Bytes != 2*r.format.Layout.ImageBytes() {
		t.Fatalf("removed %+v, %v", removed, err)
	}
	check := func() {
		t.Helper()
		for i, h := range r.hits(0, 1, 2) {
			if (h.State == tier.Ready) != (i == 2) {
				t.Errorf("block %d is %v", i, h.State)
			}
		}
		for _, err := range r.load(store.LoadOptions{}, 0, 1) {
			wantErr(t, err, errdefs.ErrNotFound)
		}
		r.mustLoad(2)
	}
	check()
	r.closeStore()
	r.openStore()
	check()
	r.dump(0)
	r.mustLoad(0)
}

// A leased block stays in all tiers, in the cache or below it.
func TestLeasedBlocksAreNotRemoved(t *testing.T) {
	t.Parallel()
	for _, cached := range []bool{true, false} {
		r := newRig(t, rigOptions{dirs: []string{t.TempDir()}, window: !cached})
		r.dump(0, 1)
		l, err := r.st.LeasePrefix(r.ctx(), r.keys(0), 0)
		r.must(err)
		removed, err := r.st.Remove(r.ctx(), r.keys(0, 1))
		r.must(err)
		if len(removed.Keys) != 1 || removed.Keys[0] != r.key(1) || !errors.Is(removed.Left, errdefs.ErrBusy) {
			t.Errorf("cached %v: removed %+v", cached, removed)
		}
		if states := make([]tier.State, 1); r.file.Lookup(r.ctx(), r.keys(0), states) != nil || states[0] != tier.Ready {
			t.Errorf("cached %v: the file of a leased block is %v", cached, states[0])
		}
		r.mustLoad(0)
		l.Release()
		if removed, err = r.st.Remove(r.ctx(), r.keys(0)); err != nil || len(removed.Keys) != 1 {
			t.Errorf("cached %v: after the lease: removed %+v, %v", cached, removed, err)
		}
	}
}

// A load may read a block into the cache until the tier below has removed it. The cached copy is
// removed too, or the block stays because it is in use.
func TestBlockThatIsReadWhileItIsRemoved(t *testing.T) {
	t.Parallel()
	b := &beforeDelete{}
	r := newRig(t, rigOptions{dirs: []string{t.TempDir()}, wrapFile: func(f tier.Tier) tier.Tier { b.Tier = f; return b }})
	r.dump(0, 1)
	r.drop(0, 1)
	var l *store.Lease
	b.call = func(key block.Key) {
		task, err := r.st.Prefetch(r.ctx(), []block.Key{key})
		r.must(err)
		r.must(task.Wait(r.ctx()))
		if key == r.key(1) {
			l, err = r.st.LeasePrefix(r.ctx(), []block.Key{key}, 0)
			r.must(err)
		}
	}
	removed, err := r.st.Remove(r.ctx(), r.keys(0, 1))
	r.must(err)
	if len(removed.Keys) != 1 || removed.Keys[0] != r.key(0) || !errors.Is(removed.Left, errdefs.ErrBusy) {
		t.Errorf("removed %+v", removed)
	}
	if h := r.hits(0); h[0].State == tier.Ready {
		t.Errorf("the removed block is in %s", h[0].Tier)
	}
	r.mustLoad(1)
	l.Release()
}

// If a tier cannot remove a block, the others that follow are tried, and the error names the tier.
func TestRemovalFails(t *testing.T) {
	t.Parallel()
	plan := fault.New(1)
	r := newRig(t, rigOptions{dirs: []string{t.TempDir()}, wrapFile: func(f tier.Tier) tier.Tier { return faulty.New(f, plan, nil) }})
	r.dump(0, 1)
	plan.Add(fault.Nth(faulty.OpDelete, 0).Fail(nil))
	removed, err := r.st.Remove(r.ctx(), r.keys(0, 1))
	r.must(err)
	if len(removed.Keys) != 1 || removed.Keys[0] != r.key(1) || !errors.Is(removed.Left, fault.ErrInjected) {
		t.Errorf("removed %+v", removed)
	}
	r.mustLoad(0)
	ended, cancel := context.WithCancel(r.ctx())
	cancel()
	if _, err = r.st.Remove(ended, r.keys(0)); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	if _, err = r.st.Remove(r.ctx(), make([]block.Key, 1)); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("a zero key: %v", err)
	}
}

// Blocks below a read-only tier would be found again.
func TestReadOnlyTiersKeepBlocks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := newRig(t, rigOptions{dirs: []string{dir}})
	w.dump(0)
	r := newRig(t, rigOptions{dirs: []string{dir}, readOnly: true})
	if _, err := r.st.Remove(r.ctx(), r.keys(0)); !errors.Is(err, errdefs.ErrReadOnly) {
		t.Errorf("a read-only tier: %v", err)
	}
	r.mustLoad(0)
}
