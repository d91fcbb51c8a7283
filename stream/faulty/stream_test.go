package faulty_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/faulty"
	"github.com/kvlane/kvlane/stream/streamtest"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func openDevice(tb testing.TB, plan *fault.Plan) *sim.Device {
	tb.Helper()
	dev, err := sim.Open(sim.Options{Faults: plan})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := dev.Close(); err != nil {
			tb.Error(err)
		}
	})
	return dev
}

func openStream(tb testing.TB, dev device.Device, depth int, plan *fault.Plan) *faulty.Stream {
	tb.Helper()
	s, err := streamcopy.Open(dev, streamcopy.Options{QueueDepth: depth})
	if err != nil {
		tb.Fatal(err)
	}
	return faulty.New(s, plan, faulty.Options{Device: dev})
}

func TestConformance(t *testing.T) {
	streamtest.Run(t, func(t *testing.T) streamtest.Env {
		t.Helper()
		below := fault.New(1)
		dev := openDevice(t, below)
		return streamtest.Env{
			Open: func(tb testing.TB, depth int) stream.Stream {
				tb.Helper()
				return openStream(tb, dev, depth, fault.New(1))
			},
			A: streamtest.Pinned(dev), B: streamtest.DeviceMemory(dev), Plan: below, Work: sim.OpWork,
		}
	})
}

// bench is a device with two memories and a faulty stream on it.
type bench struct {
	*testing.T
	s        *faulty.Stream
	plan     *fault.Plan
	dst, src *mem.Region
	view     streamtest.Memory
}

func newBench(t *testing.T, rules ...fault.Rule) *bench {
	t.Helper()
	dev := openDevice(t, nil)
	b := &bench{T: t, plan: fault.New(7, rules...), view: streamtest.DeviceMemory(dev)}
	b.dst, b.src = b.view.Alloc(t, 1000), streamtest.Pinned(dev).Alloc(t, 1000)
	b.s = openStream(t, dev, 0, b.plan)
	t.Cleanup(func() {
		b.plan.Release()
		if err := b.s.Close(b.wait()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

func (b *bench) wait() context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.Context()), 30*time.Second)
	b.Cleanup(cancel)
	return ctx
}

func (b *bench) submit() (*stream.Ticket, error) {
	return b.s.Submit(b.wait(), &mem.Batch{Dst: []mem.Extent{mem.All(b.dst)}, Src: []mem.Extent{mem.All(b.src)}})
}

func (b *bench) must() *stream.Ticket {
	b.Helper()
	t, err := b.submit()
	if err != nil {
		b.Fatal(err)
	}
	return t
}

func TestFailedSubmit(t *testing.T) {
	b := newBench(t, fault.Nth(faulty.OpSubmit, 1).Fail(errdefs.ErrNoMemory))
	first := b.must()
	if ticket, err := b.submit(); ticket != nil || !errors.Is(err, errdefs.ErrNoMemory) {
		t.Errorf("ticket %v, error %v", ticket != nil, err)
	}
	next := b.must()
	if err := next.Wait(b.wait()); err != nil || next.ID() != first.ID()+1 {
		t.Errorf("ticket %d after %d: %v", next.ID(), first.ID(), err)
	}
}

func TestFailedTicketIsSticky(t *testing.T) {
	b := newBench(t, fault.Nth(faulty.OpTicket, 1).Fail(errdefs.ErrNoMemory))
	if err := b.must().Wait(b.wait()); err != nil {
		t.Error(err)
	}
	failing := b.must()
	if err := failing.Wait(b.wait()); !errors.Is(err, errdefs.ErrNoMemory) || failing.Completion().Bytes != 0 {
		t.Errorf("ticket: %v, %+v", err, failing.Completion())
	}
	if _, err := b.submit(); !errors.Is(err, errdefs.ErrBroken) || !errors.Is(err, errdefs.ErrNoMemory) {
		t.Errorf("submit on a broken stream: %v", err)
	}
}

func TestDelayedResolution(t *testing.T) {
	b := newBench(t, fault.Nth(faulty.OpTicket, 0).Stall())
	late, behind := b.must(), b.must()
	if err := b.plan.Await(b.wait(), 1); err != nil {
		t.Fatal(err)
	}
	select {
	case <-late.Done():
		t.Error("a stalled ticket resolved")
	case <-behind.Done():
		t.Error("a ticket overtook a stalled one")
	case <-time.After(5 * time.Millisecond):
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if err := b.s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close with a stalled ticket: %v", err)
	}
	b.plan.Release()
	if err := errors.Join(late.Wait(b.wait()), behind.Wait(b.wait())); err != nil {
		t.Error(err)
	}
}

func TestCorruption(t *testing.T) {
	b := newBench(t, fault.Nth(faulty.OpTicket, 0).Corrupt())
	for _, want := range []int{1, 0} {
		if err := b.must().Wait(b.wait()); err != nil {
			t.Fatal(err)
		}
		wrong := 0
		for i, v := range b.view.Read(t, mem.All(b.dst)) {
			if v != b.src.Bytes()[i] {
				wrong++
			}
		}
		if wrong != want {
			t.Errorf("%d wrong bytes, want %d", wrong, want)
		}
	}
}
