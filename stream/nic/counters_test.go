package nic_test

import (
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/nic"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// TestCounters checks the counts of posted, failed and flushed requests over two streams, of which
// the first breaks.
func TestCounters(t *testing.T) {
	plan := fault.New(1)
	g := newRig(t, rigOptions{soft: soft.Options{Faults: plan}})
	var c nic.Counters
	o := nic.Options{QueuePairs: 2, StripeBytes: 1 << 20, NICs: []nic.NIC{{Registry: g.nics[0], Counters: &c}}}
	gpu, host := g.device(t, 1000), g.pinned(t, 1000)
	want := func(when string, w stream.NICStats) {
		t.Helper()
		var s stream.NICStats
		c.Read(&s)
		flushed := s.Flushed
		s.Flushed = min(s.Flushed, w.Flushed)
		if s.Requests != w.Requests || s.Bytes != w.Bytes || s.Doorbells != w.Doorbells || s.Failed != w.Failed || s.Broken != w.Broken ||
			s.Flushed != w.Flushed || s.QueuePairs != w.QueuePairs || s.QueuePairsOpened != w.QueuePairsOpened {
			t.Errorf("%s: %+v, %d flushed, want %+v", when, s, flushed, w)
		}
	}
	for round := range 2 {
		s, err := nic.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		n := int64(round)
		opened := 2 * (n + 1)
		want("open", stream.NICStats{Requests: 40 * n, Bytes: 320 * n, Doorbells: 2 * n, Failed: n, Flushed: n, Broken: n, QueuePairs: 2, QueuePairsOpened: opened})
		ok(t, submit(t, s, streamtest.Strided(gpu, host, 20, 8)))
		want("copied", stream.NICStats{Requests: 40*n + 20, Bytes: 320*n + 160, Doorbells: 2*n + 1, Failed: n, Flushed: n, Broken: n, QueuePairs: 2, QueuePairsOpened: opened})
		plan.Add(fault.Nth(soft.OpWrite, int(plan.Seen(soft.OpWrite))+7))
		wantErr(t, submit(t, s, streamtest.Strided(gpu, host, 20, 8)).Wait(deadline(t)), fault.ErrInjected)
		if _, err := s.Submit(t.Context(), streamtest.Strided(gpu, host, 1, 8)); err == nil {
			t.Error("a broken stream takes a batch")
		} else {
			wantErr(t, err, errdefs.ErrBroken)
		}
		if err := s.Close(deadline(t)); err != nil {
			t.Error(err)
		}
		n++
		want("closed", stream.NICStats{Requests: 40 * n, Bytes: 320 * n, Doorbells: 2 * n, Failed: n, Flushed: n, Broken: n, QueuePairsOpened: opened})
	}
}
