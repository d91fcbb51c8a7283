package nic_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/nic"
	"github.com/kvlane/kvlane/stream/streamtest"
)

const stripe = 64

// onPair returns the offset of stripe n of r among those that queue pair q writes. Stripes are
// aligned.
func onPair(tb testing.TB, s *nic.Stream, r *mem.Region, q, n int) int64 {
	tb.Helper()
	for off := int64(0); off+stripe <= r.Len(); off += stripe {
		if s.PairOf(uint64(r.Dev())+uint64(off)) != q {
			continue
		}
		if n--; n < 0 {
			return off
		}
	}
	tb.Fatalf("queue pair %d writes to fewer stripes", q)
	return 0
}

func one(dst *mem.Region, to int64, src *mem.Region) *mem.Batch {
	return &mem.Batch{Dst: []mem.Extent{{Region: dst, Off: to, Len: stripe}}, Src: []mem.Extent{{Region: src, Len: stripe}}}
}

// TestCompletionsOutOfOrder delays the request of the first batch while requests of the second
// complete on another queue pair. Tickets must still resolve in order: both after the first batch
// has completed.
func TestCompletionsOutOfOrder(t *testing.T) {
	plan := fault.New(1, fault.Nth(soft.OpWrite, 0).Stall())
	g := newRig(t, rigOptions{soft: soft.Options{Faults: plan}})
	s := g.openUntilEnd(t, nic.Options{QueuePairs: 2, StripeBytes: stripe})
	dst, src := g.device(t, 64*stripe), g.pinned(t, stripe)
	first := submit(t, s, one(dst, onPair(t, s, dst, 0, 0), src))
	if err := plan.Await(deadline(t), 1); err != nil {
		t.Fatal(err)
	}
	second := submit(t, s, one(dst, onPair(t, s, dst, 1, 0), src))
	for plan.Seen(soft.OpWrite) < 2 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(5 * time.Millisecond)
	select {
	case <-first.Done():
		t.Error("the ticket resolved without its completion")
	case <-second.Done():
		t.Error("the second ticket resolved before the first")
	default:
	}
	plan.Release()
	ok(t, second)
	ok(t, first)
}

// TestFirstFailureInOrderIsTheCause fails the later of two batches first. Each ticket must return
// its own error.
func TestFirstFailureInOrderIsTheCause(t *testing.T) {
	early, late := errors.New("early"), errors.New("late")
	plan := fault.New(1, fault.Nth(soft.OpWrite, 0).Stall(), fault.Nth(soft.OpWrite, 1).Fail(late), fault.Nth(soft.OpWrite, 2).Fail(early))
	g := newRig(t, rigOptions{soft: soft.Options{Faults: plan}})
	s := g.open(t, nic.Options{QueuePairs: 2, StripeBytes: stripe})
	dst, src := g.device(t, 64*stripe), g.pinned(t, 2*stripe)
	b := one(dst, onPair(t, s, dst, 0, 0), src) // the first request stalls, the second fails after the later batch has failed
	b.Dst = append(b.Dst, mem.Extent{Region: dst, Off: onPair(t, s, dst, 0, 5), Len: stripe})
	b.Src = append(b.Src, mem.Extent{Region: src, Off: stripe, Len: stripe})
	first := submit(t, s, b)
	if err := plan.Await(deadline(t), 1); err != nil {
		t.Fatal(err)
	}
	second := submit(t, s, one(dst, onPair(t, s, dst, 1, 0), src))
	for s.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	wantErr(t, s.Err(), late)
	plan.Release()
	wantErr(t, first.Wait(deadline(t)), early)
	if err := first.Err(); errors.Is(err, late) || errors.Is(err, errdefs.ErrBroken) {
		t.Errorf("the first ticket returns %v", err)
	}
	wantErr(t, second.Wait(deadline(t)), errdefs.ErrBroken, early, late)
	_, err := s.Submit(t.Context(), &mem.Batch{})
	wantErr(t, err, errdefs.ErrBroken, early)
	if err := s.Close(deadline(t)); err != nil {
		t.Error(err)
	}
}

// TestCancelDrains cancels a batch that is partly posted. No more requests may be posted, the
// ticket resolves when the posted ones have completed, and the stream stays usable.
func TestCancelDrains(t *testing.T) {
	for _, pairs := range []int{1, 3} {
		gpu := fault.New(1)
		g := newRig(t, rigOptions{sim: sim.Options{Faults: gpu}})
		s := g.openUntilEnd(t, nic.Options{QueuePairs: pairs, SendDepth: 16, StripeBytes: stripe})
		const n = 2000
		dst, src := g.pinned(t, n*9), g.device(t, n*9)
		gpu.Add(fault.Nth(sim.OpWork, int(gpu.Seen(sim.OpWork))).Stall())
		ticket := submit(t, s, streamtest.Strided(dst, src, n, 8))
		if err := gpu.Await(deadline(t), 1); err != nil {
			t.Fatal(err)
		}
		ticket.Cancel()
		select {
		case <-ticket.Done():
			t.Fatalf("resolved while its bytes were moving: %v", ticket.Err())
		case <-time.After(10 * time.Millisecond):
		}
		gpu.Release()
		wantErr(t, ticket.Wait(deadline(t)), errdefs.ErrCanceled)
		noLateWrites(t, dst)
		if c := ticket.Completion(); c.Bytes != 0 || c.Path != stream.PathNICSoft {
			t.Errorf("completion %+v", c)
		}
		copiesBytes(t, s, dst, src, g.pinned(t, n*9), n, 8)
	}
}

// TestReopen repeatedly breaks a stream and opens another one over the same NICs and memory.
func TestReopen(t *testing.T) {
	plan := fault.New(1)
	g := newRig(t, rigOptions{nics: 2, soft: soft.Options{Faults: plan, Devices: []soft.DeviceOptions{{}, {}}}})
	dst, gpu, src := g.pinned(t, 1000), g.device(t, 1000), g.pinned(t, 1000)
	for i := range 10 {
		s := g.open(t, nic.Options{QueuePairs: 2, StripeBytes: stripe})
		copiesBytes(t, s, dst, gpu, src, 20, 8)
		plan.Add(fault.Nth(soft.OpWrite, int(plan.Seen(soft.OpWrite))+i).Fail(nil))
		wantErr(t, submit(t, s, streamtest.Strided(gpu, src, 20, 8)).Wait(deadline(t)), fault.ErrInjected)
		if err := s.Close(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
	// The broken streams must not hold the NICs or the memory, which is unregistered when the test
	// ends.
}

// TestDirectionsShareNoRequest checks that a batch that copies bytes to the device and adjacent
// bytes from it uses separate requests.
func TestDirectionsShareNoRequest(t *testing.T) {
	g := newRig(t, rigOptions{})
	s := g.openUntilEnd(t, nic.Options{})
	gpu, host, waste := g.device(t, 64), g.pinned(t, 64), g.pinned(t, 64)
	for i := range host.Bytes() {
		host.Bytes()[i] = byte(i + 1)
	}
	ok(t, submit(t, s, &mem.Batch{Dst: []mem.Extent{mem.All(gpu)}, Src: []mem.Extent{mem.All(host)}}))
	clear(waste.Bytes())
	ok(t, submit(t, s, &mem.Batch{
		Dst: []mem.Extent{{Region: gpu, Len: 32}, {Region: waste, Off: 32, Len: 32}},
		Src: []mem.Extent{{Region: host, Off: 32, Len: 32}, {Region: gpu, Off: 32, Len: 32}},
	}))
	if !bytes.Equal(waste.Bytes()[32:], host.Bytes()[32:]) {
		t.Error("the bytes beside were not fetched")
	}
	ok(t, submit(t, s, &mem.Batch{Dst: []mem.Extent{mem.All(waste)}, Src: []mem.Extent{mem.All(gpu)}}))
	if want := append(bytes.Clone(host.Bytes()[32:]), host.Bytes()[32:]...); !bytes.Equal(waste.Bytes(), want) {
		t.Errorf("the device has %d, want %d", waste.Bytes(), want)
	}
}

// TestAllocationsPerBatch checks that a batch allocates its ticket and its operation only, however
// many requests it has.
func TestAllocationsPerBatch(t *testing.T) {
	if testing.Short() {
		testkit.Skip(t, "long", "counts allocations, which does not test concurrency; not with -short")
	}
	g := newRig(t, rigOptions{null: true})
	s := g.openUntilEnd(t, nic.Options{})
	dst, src := g.device(t, 900*9), g.pinned(t, 900*9)
	ctx := context.Background()
	for _, n := range []int{1, 900} {
		b := streamtest.Strided(dst, src, n, 8)
		run := func() {
			ticket, err := s.Submit(ctx, b)
			if err != nil {
				t.Fatal(err)
			}
			if err := ticket.Wait(ctx); err != nil {
				t.Fatal(err)
			}
		}
		for range 200 {
			run() // warm up: queues and pools grow, also those of the software NIC
		}
		if a := testing.AllocsPerRun(100, run); a > 3 {
			t.Errorf("%v allocations for a batch of %d", a, n)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	g := newRig(t, rigOptions{soft: soft.Options{Devices: []soft.DeviceOptions{{Ports: []soft.PortOptions{{Down: true}}}}}})
	for name, tt := range map[string]struct {
		o    nic.Options
		want error
	}{
		"no NIC":            {nic.Options{}, errdefs.ErrInvalid},
		"no registry":       {nic.Options{NICs: []nic.NIC{{}}}, errdefs.ErrInvalid},
		"queue pairs":       {g.options(nic.Options{QueuePairs: -1}), errdefs.ErrInvalid},
		"many queue pairs":  {g.options(nic.Options{QueuePairs: 1 << 17}), errdefs.ErrInvalid},
		"send depth":        {g.options(nic.Options{SendDepth: 100}), errdefs.ErrInvalid},
		"entries":           {g.options(nic.Options{MaxSGE: -1}), errdefs.ErrInvalid},
		"request bytes":     {g.options(nic.Options{RequestBytes: -1}), errdefs.ErrInvalid},
		"stripe bytes":      {g.options(nic.Options{StripeBytes: 3}), errdefs.ErrInvalid},
		"queue depth":       {g.options(nic.Options{QueueDepth: -1}), errdefs.ErrInvalid},
		"timeout":           {g.options(nic.Options{Timeout: -1}), errdefs.ErrInvalid},
		"port that is down": {g.options(nic.Options{}), errdefs.ErrBroken},
	} {
		if s, err := nic.Open(tt.o); s != nil || !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
