package file_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
)

// What is retained is the prefix, wherever it ends, and nothing behind it, whoever looked at what.
func TestRetainEndsAtTheFirstThatIsNotThere(t *testing.T) {
	const n = 150
	for _, gap := range []int{0, 5, 15, 16, 17, 31, 32, 90, n - 1, n} {
		c := config(t)
		tr := open(t, c)
		all := keys(0, n)
		put(t, tr, c.Formats[0], all...)
		there := n
		if gap < n {
			there--
			if err := os.Remove(path(c.Dirs[0], all[gap])); err != nil {
				t.Fatal(err)
			}
		}
		before := tr.Stats()
		if k, err := tr.Retain(t.Context(), all); k != gap || err != nil {
			t.Fatalf("%d blocks and not %d: %v", k, gap, err)
		}
		st := tr.Stats()
		if hits, misses := st.Hits-before.Hits, st.Misses-before.Misses; st.Retained != int64(gap) || hits != int64(gap) || misses != int64(n-there) {
			t.Errorf("of %d: %d retained, %d hits, %d misses", gap, st.Retained, hits, misses)
		}
		if removed, err := tr.GC(t.Context(), 0); err != nil || removed != there-gap {
			t.Errorf("of %d that are there and not retained %d were removed: %v", there-gap, removed, err)
		}
		tr.Release(all[:gap])
		if removed, err := tr.GC(t.Context(), 0); err != nil || removed != gap {
			t.Errorf("of %d that were released %d were removed: %v", gap, removed, err)
		}
	}
}

// A prefix of many blocks took as long as looking at them one after the other, on a file system each of whose answers takes a while.
func TestDefectBlocksAreRetainedOneByOne(t *testing.T) {
	const n = 64
	plan := fault.New(1)
	c := config(t)
	c.FS = faultfs.New(dirfs.OS(), plan, nil)
	tr := open(t, c)
	all := keys(0, n)
	put(t, tr, c.Formats[0], all...)
	before := plan.Seen("stat")
	plan.Add(fault.Nth("stat", int(before)+n/2).Stall())
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience(20*time.Second))
	defer cancel()
	defer plan.Release()
	type answer struct {
		n   int
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		k, err := tr.Retain(ctx, all)
		answers <- answer{k, err}
	}()
	if err := plan.Await(ctx, 1); err != nil {
		t.Fatal(err)
	}
	const stalled = 16 // blocks that may be behind the one whose look takes long
	for plan.Seen("stat")-before < n-stalled {
		select {
		case <-ctx.Done():
			plan.Release()
			<-answers
			t.Fatalf("%d of %d blocks were looked at beside the one that takes long", plan.Seen("stat")-before, n)
		case <-time.After(time.Millisecond):
		}
	}
	plan.Release()
	if a := <-answers; a.n != n || a.err != nil {
		t.Errorf("%d of %d blocks: %v", a.n, n, a.err)
	}
	tr.Release(all)
}

// The end of the context ends it, with what it has.
func TestRetainIsCanceled(t *testing.T) {
	const n = 64
	plan := fault.New(1)
	c := config(t)
	c.FS = faultfs.New(dirfs.OS(), plan, nil)
	tr := open(t, c)
	all := keys(0, n)
	put(t, tr, c.Formats[0], all...)
	plan.Add(fault.Nth("stat", int(plan.Seen("stat"))+n/2).Stall())
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		_ = plan.Await(t.Context(), 1)
		cancel(errdefs.ErrCanceled)
		plan.Release()
	}()
	k, err := tr.Retain(ctx, all)
	if k < n && !errors.Is(err, errdefs.ErrCanceled) {
		t.Errorf("%d of %d blocks: %v", k, n, err)
	}
	if st := tr.Stats(); st.Retained != int64(k) {
		t.Errorf("%d blocks are retained, and not %d", st.Retained, k)
	}
	tr.Release(all[:k])
}
