package store_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier"
)

// pages returns the number of different pages in the submitted batches.
func (h *manualStream) pages() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make(map[uint32]bool)
	for _, b := range h.batches {
		for i := range b.Paged.Groups {
			for _, p := range b.Paged.Groups[i].Pairs {
				all[p.Page] = true
			}
		}
	}
	return len(all)
}

// resolve resolves ticket n.
func (h *manualStream) resolve(n int, err error) {
	h.mu.Lock()
	t := h.tickets[n]
	h.mu.Unlock()
	t.Resolve(stream.Completion{}, err)
}

// dumpLayers starts a layerwise dump of blocks from pages 0, 1, ... and submits all shards.
func (r *rig) dumpLayers(ns ...int) *store.DumpTask {
	r.tb.Helper()
	d, err := r.st.Dump(r.ctx(), r.pages, r.refs(0, ns...), store.DumpOptions{Layerwise: true})
	r.must(err)
	for k := range r.o.shards {
		r.must(d.SubmitShard(r.ctx(), k))
	}
	return d
}

// A layerwise dump that is larger than the slots for waiting dumps copied its chunks one after
// another. After all layers are submitted, later chunks must be copied concurrently with the first.
// The source is free after the last copy, also if copies fail.
func TestDefectChunksOfADumpByLayersOneByOne(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{nil, errors.New("the copy failed")} {
		h := &manualStream{}
		r := newRig(t, rigOptions{slots: 16, wrapDump: func(st stream.Stream) stream.Stream { h.Stream = st; return h }})
		all := []int{1, 2, 3, 4, 5, 6} // two blocks at a time may wait for layers
		d := r.dumpLayers(all...)
		r.eventually(func() bool { return h.pages() == len(all) })
		last := h.count() - 1
		h.resolve(0, cause)
		for n := 1; n < last; n++ {
			h.resolve(n, nil)
		}
		soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		wantErr(t, d.SourceFree(soon), context.DeadlineExceeded)
		cancel()
		h.resolve(last, nil)
		r.must(d.SourceFree(r.ctx()))
		r.resolved(d.Done())
		for i, err := range d.Errs() {
			want := error(nil)
			if i < 2 {
				want = cause
			}
			if !errors.Is(err, want) {
				t.Errorf("block %d: %v, want %v", all[i], err, want)
			}
		}
	}
}

// A layerwise dump completes with any number of slots, even with one slot for waiting dumps or with
// fewer slots than two chunks.
func TestDumpByLayersInFewSlots(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{2, 3, 4, 5, 9, 16} {
		for _, groups := range []int{1, 2} {
			t.Run(fmt.Sprintf("%d slots, %d page groups", slots, groups), func(t *testing.T) {
				r := newRig(t, rigOptions{slots: slots, groups: groups, dirs: []string{t.TempDir()}})
				var all []int
				for n := 1; n <= 12; n++ {
					all = append(all, n)
					r.fill(uint32(n-1), n)
				}
				d := r.dumpLayers(all...)
				r.must(d.SourceFree(r.ctx()))
				r.must(d.Durable(r.ctx()))
				for _, n := range all {
					r.mustLoad(n)
				}
			})
		}
	}
}

// A slot in quarantine that the device may still write to counts as held by a waiting dump until
// the device has finished.
func TestDefectSlotsInQuarantineAreHeld(t *testing.T) {
	t.Parallel()
	for _, layerwise := range []bool{false, true} {
		clock := clockwork.NewFakeClock()
		var batches atomic.Int32
		r := newRig(t, rigOptions{
			slots: 8, clock: clock, tune: func(c *store.Config) { c.WaitMax = time.Minute }, // waiting dumps may hold two slots
			wrapDump: func(st stream.Stream) stream.Stream {
				es, ok := st.(stream.EventStream)
				if !ok {
					t.Errorf("%T does not support events", st)
				}
				return counted{es, &batches}
			},
		})
		w := r.recordWork(0, 1)
		var started []*store.DumpTask
		for n := 1; n <= 2; n++ {
			before := batches.Load()
			d := r.dumpAfter(w, layerwise, n)
			r.eventually(func() bool { return batches.Load() > before })
			d.Cancel()
			r.eventually(func() bool { return r.st.Stats().Quarantined == int64(n) })
			started = append(started, d)
		}
		d := r.dumpAfter(w, layerwise, 3)
		r.eventually(func() bool {
			clock.Advance(time.Minute)
			return !unresolved(d.Done())
		})
		wantErr(t, d.Errs()[0], errdefs.ErrBusy)
		if h := r.hits(3)[0]; h.State == tier.Filling {
			t.Error("block 3 holds a slot")
		}
		w.end()
		for _, d := range started {
			r.resolved(d.Done())
		}
		r.must(r.dumpAfter(w, layerwise, 3).Durable(r.ctx()))
	}
}
