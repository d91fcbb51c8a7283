package store_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier"
)

// stuckShard starts a layerwise dump of blocks 1 and 2. Its second shard depends on work that never
// ends. It returns when the dump holds slots.
func stuckShard(r *rig) *store.DumpTask {
	r.tb.Helper()
	d, err := r.st.Dump(r.ctx(), r.pages, r.refs(0, 1, 2), store.DumpOptions{Layerwise: true})
	r.must(err)
	r.must(d.SubmitShard(r.ctx(), 0))
	r.must(d.SubmitShard(r.ctx(), 1, &dependency{done: make(chan struct{})}))
	r.must(d.SubmitShard(r.ctx(), 2))
	r.eventually(func() bool { return r.hits(1)[0].State == tier.Filling })
	return d
}

// wantDependencyError checks that every block of d failed with want, and that each error names the
// shard and the dependency.
func wantDependencyError(t *testing.T, r *rig, d *store.DumpTask, want error) {
	t.Helper()
	r.resolved(d.Done())
	for _, err := range d.Errs() {
		wantErr(t, err, want)
		if s := err.Error(); !strings.Contains(s, "shard 1 of 3") || !strings.Contains(s, "dependency 1 of 1 (*store_test.dependency)") {
			t.Errorf("the error does not name the shard and its dependency: %v", err)
		}
	}
	r.must(d.SourceFree(r.ctx()))
}

// A shard may depend on an engine that has died. The dump must release its slots after LeaseMax.
func TestDefectLayerwiseDumpWaitsForADeadEngineUntilLeaseMaxOnly(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	r := newRig(t, rigOptions{slots: 4, clock: clock, tune: func(c *store.Config) { c.LeaseMax = time.Minute }})
	d := stuckShard(r)
	clock.Advance(time.Minute - time.Millisecond)
	if !unresolved(d.Done()) {
		t.Fatal("the dump gave up before LeaseMax")
	}
	r.eventually(func() bool { clock.Advance(time.Minute); return !unresolved(d.Done()) })
	wantDependencyError(t, r, d, errdefs.ErrExpired)
	if s := d.Errs()[0].Error(); !strings.Contains(s, "1m0s") {
		t.Errorf("the error does not state the duration of the wait: %s", s)
	}
	r.dump(3, 4, 5, 6) // the slots are free again
	r.mustLoad(3, 4, 5, 6)
}

// Close ends a dump that holds slots and waits for an engine that has died.
func TestDefectLayerwiseDumpThatWaitsForADeadEngineEndsOnClose(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{slots: 4})
	d := stuckShard(r)
	r.must(r.st.Close(r.ctx()))
	wantDependencyError(t, r, d, errdefs.ErrClosed)
}

// A failed copy also ends the wait for the dependency.
func TestDefectLayerwiseDumpThatWaitsForADeadEngineEndsWithAFailedCopy(t *testing.T) {
	t.Parallel()
	cause := errors.New("the copy failed")
	leased := &manualStream{}
	r := newRig(t, rigOptions{slots: 4, wrapDump: func(st stream.Stream) stream.Stream { leased.Stream = st; return leased }})
	d, err := r.st.Dump(r.ctx(), r.pages, r.refs(0, 1), store.DumpOptions{Layerwise: true})
	r.must(err)
	r.must(d.SubmitShard(r.ctx(), 0))
	r.must(d.SubmitShard(r.ctx(), 1, &dependency{done: make(chan struct{})}))
	r.eventually(func() bool { return leased.count() == 1 })
	leased.tickets[0].Resolve(stream.Completion{}, cause)
	r.resolved(d.Done())
	wantErr(t, d.Errs()[0], cause)
}

// A dump that holds no slots waits for its dependencies without a limit. After Close it waits for
// LeaseMax at most.
func TestDefectDumpThatWaitsForADeadEngineEndsAfterClose(t *testing.T) {
	t.Parallel()
	for _, layerwise := range []bool{false, true} {
		clock := clockwork.NewFakeClock()
		r := newRig(t, rigOptions{clock: clock, tune: func(c *store.Config) { c.LeaseMax = time.Minute }})
		dead, alive := &dependency{done: make(chan struct{})}, &dependency{done: make(chan struct{})}
		start := func(page int, n int, after mem.Dependency) *store.DumpTask {
			r.fill(uint32(page), n)
			d, err := r.st.Dump(r.ctx(), r.pages, r.refs(page, n), store.DumpOptions{Layerwise: layerwise, After: []mem.Dependency{after}})
			r.must(err)
			for i := range r.o.shards {
				if layerwise {
					r.must(d.SubmitShard(r.ctx(), i))
				}
			}
			return d
		}
		lost, saved := start(0, 1, dead), start(1, 2, alive)
		clock.Advance(time.Hour)
		if !unresolved(lost.Done()) {
			t.Fatal("the dump did not wait for its dependency")
		}
		closed := make(chan error, 1)
		go func() { closed <- r.st.Close(r.ctx()) }()
		r.eventually(func() bool { _, err := r.st.Lookup(r.ctx(), nil); return errors.Is(err, errdefs.ErrClosed) })
		close(alive.done)
		r.must(saved.Durable(r.ctx())) // running dumps complete
		r.eventually(func() bool { clock.Advance(time.Minute); return !unresolved(lost.Done()) })
		err := lost.Errs()[0]
		wantErr(t, err, errdefs.ErrClosed)
		if s := err.Error(); !strings.Contains(s, "dependency 1 of 1 (*store_test.dependency)") {
			t.Errorf("the error does not name the dependency: %s", s)
		}
		r.must(<-closed)
	}
}

// Cancel ends the wait of a layerwise dump and of a whole dump at once.
func TestDefectCancelEndsAWaitForADeadEngine(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{slots: 4})
	d := stuckShard(r)
	d.Cancel()
	r.resolved(d.Done())
	wantErr(t, d.Errs()[0], errdefs.ErrCanceled)
	d, err := r.st.Dump(context.Background(), r.pages, r.refs(0, 1), store.DumpOptions{After: []mem.Dependency{&dependency{done: make(chan struct{})}}})
	r.must(err)
	d.Cancel()
	r.resolved(d.Done())
	wantErr(t, d.Errs()[0], errdefs.ErrCanceled)
}
