package store_test

import (
	"context"
	"sync"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/tier"
)

// manyTier stores many blocks with one PutMany, and single blocks with Put. The test controls when
// each call continues.
type manyTier struct {
	tier.Tier
	begun   chan struct{} // gets a value at the start of each call
	unblock chan struct{} // each call takes one value before it continues
	bad     block.Key     // block that the tier refuses

	mu    sync.Mutex
	calls []int // number of blocks of each call
}

func (m *manyTier) called(ctx context.Context, n int) error {
	m.mu.Lock()
	m.calls = append(m.calls, n)
	m.mu.Unlock()
	m.begun <- struct{}{}
	select {
	case <-m.unblock:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (m *manyTier) put(ctx context.Context, key block.Key, src mem.Extent) error {
	if key == m.bad {
		return errdefs.ErrNoSpace
	}
	return m.Tier.Put(ctx, key, src)
}

func (m *manyTier) Put(ctx context.Context, key block.Key, src mem.Extent) error {
	if err := m.called(ctx, 1); err != nil {
		return err
	}
	return m.put(ctx, key, src)
}

func (m *manyTier) PutMany(ctx context.Context, keys []block.Key, srcs []mem.Extent, errs []error) {
	err := m.called(ctx, len(keys))
	for i := range keys {
		if errs[i] = err; err == nil {
			errs[i] = m.put(ctx, keys[i], srcs[i])
		}
	}
}

// newMany returns a store with a single writer. The writer is in the middle of writing block 0.
func newMany(t *testing.T) (*rig, *manyTier, *store.DumpTask) {
	t.Helper()
	m := &manyTier{begun: make(chan struct{}, 64), unblock: make(chan struct{}, 64)}
	r := newRig(t, rigOptions{
		slots: 16, dirs: []string{t.TempDir()},
		wrapFile: func(next tier.Tier) tier.Tier { m.Tier = next; return m },
		tune:     func(c *store.Config) { c.Writers = 1 },
	})
	d := r.startDump(0)
	<-m.begun
	return r, m, d
}

// dumpAt dumps blocks from pages first, first+1, ... and waits until they are published.
func (r *rig) dumpAt(first int, ns ...int) *store.DumpTask {
	r.tb.Helper()
	refs := r.refs(first, ns...)
	for i, n := range ns {
		r.fill(refs[i].Page, n)
	}
	d, err := r.st.Dump(r.ctx(), r.pages, refs, store.DumpOptions{})
	r.must(err)
	r.must(d.Published(r.ctx()))
	return d
}

// A writer writes all blocks together that were queued while it was busy. If one block fails, the
// others succeed.
func TestWriterTakesWhatIsQueuedTogether(t *testing.T) {
	t.Parallel()
	r, m, d := newMany(t)
	m.bad = r.key(4)
	first, second := r.dumpAt(1, 1, 2, 3), r.dumpAt(4, 4, 5, 1)
	m.unblock <- struct{}{}
	r.must(d.Durable(r.ctx()))
	m.unblock <- struct{}{}
	r.must(first.Durable(r.ctx()))
	err := second.Durable(r.ctx())
	wantErr(t, err, errdefs.ErrNoSpace)
	for i, err := range second.Errs() {
		if (err != nil) != (i == 0) {
			t.Errorf("block %d: %v", i, err)
		}
	}
	if len(m.calls) != 2 || m.calls[1] != 6 {
		t.Errorf("blocks were written in calls of %v, want 1 and 6", m.calls)
	}
	if st := r.st.Stats(); st.Tiers[1].LeftOut != 1 || st.DumpErrors != 1 || st.Backlog != 0 {
		t.Errorf("%d failures to write, %d blocks not dumped, %d in the queue", st.Tiers[1].LeftOut, st.DumpErrors, st.Backlog)
	}
	r.forgetCached(1, 2, 3, 5)
	r.mustLoad(1, 2, 3, 5)
}

// A canceled dump does not affect other dumps whose blocks are in the same write. The write is
// canceled after all its dumps are.
func TestCanceledDumpsInOneWriting(t *testing.T) {
	t.Parallel()
	for _, both := range []bool{false, true} {
		r, m, d := newMany(t)
		first, second, third := r.dumpAt(1, 1, 2), r.dumpAt(3, 3, 4), r.dumpAt(5, 5)
		third.Cancel() // canceled before the writer takes it
		m.unblock <- struct{}{}
		r.must(d.Durable(r.ctx()))
		<-m.begun
		first.Cancel()
		if both {
			second.Cancel()
		} else {
			m.unblock <- struct{}{}
		}
		r.resolved(first.Done())
		err := second.Durable(r.ctx())
		if both {
			wantErr(t, err, errdefs.ErrCanceled)
		} else {
			r.must(err)
		}
		wantErr(t, third.Durable(r.ctx()), errdefs.ErrCanceled)
		if m.calls[1] != 4 {
			t.Errorf("blocks were written in calls of %v, want 1 and 4", m.calls)
		}
	}
}
