package store_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/tier"
)

// why returns the explanations of blocks.
func (r *rig) why(ns ...int) []tier.Why {
	r.tb.Helper()
	all, err := r.st.Why(r.ctx(), r.keys(ns...))
	r.must(err)
	for i := range all {
		if all[i].Key != r.key(ns[i]) {
			r.tb.Errorf("block %d has the key %s", ns[i], all[i].Key)
		}
	}
	return all
}

// wantWhy checks the text of a block's explanation.
func (r *rig) wantWhy(n int, want string) {
	r.tb.Helper()
	if got := r.why(n)[0].String(); !strings.Contains(got, want) {
		r.tb.Errorf("block %d %s; want %q", n, got, want)
	}
}

// Each cause for a missing block has its explanation: eviction from memory, removal from files, a
// tier that refuses the block, and a block that was never stored.
func TestWhyABlockIsMissing(t *testing.T) {
	t.Parallel()
	refuse := false
	r := newThree(t, nil, func(o *rigOptions) {
		o.slots, o.wrapFile = 4, nil
		o.tune = func(c *store.Config) {
			inner := c.Next[1]
			c.Next[1] = &hookTier{Tier: inner, put: func(ctx context.Context, key block.Key, src mem.Extent) error {
				if refuse {
					return errors.New("the tier is tired")
				}
				return inner.Put(ctx, key, src)
			}}
		}
	})
	r.wantWhy(1, "is not stored in tier log, and no removal is recorded")
	r.dump(1)
	r.wantWhy(1, "is stored in tier cache since 20")
	r.wantWhy(1, "; also in tier file; also in tier log")
	r.dump(2, 3, 4, 5) // in memory they replace block 1
	if w := r.why(1)[0]; w.Tiers[0].State != tier.Absent || w.Tiers[0].Removed == nil || w.Tiers[0].Removed.Cause != tier.CauseBound {
		t.Errorf("memory: %+v", w.Tiers[0])
	}
	r.wantWhy(1, "is stored in tier file")
	_, err := r.file.Remove(r.ctx(), r.keys(1))
	r.must(err)
	_, err = r.log.Remove(r.ctx(), r.keys(1))
	r.must(err)
	r.wantWhy(1, "was removed from tier file by a request at 20") // the hook hides that of the log
	refuse = true
	r.dump(6)
	r.drop(6)
	_, err = r.file.Remove(r.ctx(), r.keys(6))
	r.must(err)
	r.wantWhy(6, "was not stored in tier log when it was last dumped: ")
	r.wantWhy(6, "the tier is tired")
	refuse = false
	r.dump(6)
	r.wantWhy(6, "also in tier log")
}

// A refusal of admission is recorded for the blocks that were refused, with its time.
func TestWhyBlocksAreComputed(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{slots: 16, dirs: []string{t.TempDir()}})
	r.dump(1, 2)
	for range 30 {
		r.st.Computed(1000, time.Nanosecond)
	}
	for range 4 {
		r.mustLoad(1, 2)
	}
	start := time.Now()
	if n := r.worth(1, 2); n != 2 { // a probe
		t.Fatalf("%d blocks are worth loading", n)
	}
	if w := r.why(1); !w[0].Computed.IsZero() {
		t.Errorf("a probe is recorded as a refusal at %v", w[0].Computed)
	}
	if n := r.worth(1, 2); n != 0 {
		t.Fatalf("%d blocks are worth loading", n)
	}
	for _, w := range r.why(1, 2) {
		if w.Computed.Before(start) || !w.Stored() {
			t.Errorf("%+v", w)
		}
	}
	r.wantWhy(2, "; the store advised to compute it at ")
	if w := r.why(3)[0]; !w.Computed.IsZero() {
		t.Errorf("a block without a refusal: %+v", w)
	}
}

// A tier that fails is explained by its error, and the others answer. A key of another identity is
// recognized if there are page groups.
func TestWhyOfFailingTiersAndOtherIdentities(t *testing.T) {
	t.Parallel()
	failure := errors.New("the disk is away")
	r := newRig(t, rigOptions{groups: 2, dirs: []string{t.TempDir()}, logDir: t.TempDir(), tune: func(c *store.Config) {
		c.Next[0] = failingLookup{c.Next[0], failure}
	}})
	r.dump(1)
	r.drop(1)
	w := r.why(1)[0]
	if w.Tiers[1].Error != failure.Error() || !w.Stored() || w.Tiers[2].State != tier.Ready || w.Other {
		t.Errorf("%+v", w)
	}
	other, err := r.st.Why(r.ctx(), []block.Key{{1}})
	r.must(err)
	if !other[0].Other || other[0].Stored() {
		t.Errorf("a key of no page group: %+v", other[0])
	}
	if _, err := r.st.Why(r.ctx(), []block.Key{{}}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("a zero key: %v", err)
	}
	ctx, cancel := context.WithCancel(r.ctx())
	cancel()
	if _, err := r.st.Why(ctx, slices.Clone(r.keys(1))); !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled context: %v", err)
	}
}

// failingLookup is a tier that cannot look up blocks.
type failingLookup struct {
	tier.Tier
	err error
}

func (f failingLookup) Lookup(context.Context, []block.Key, []tier.State) error { return f.err }
