package copy_test

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
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

const patience = 30 * time.Second

func deadline(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	tb.Cleanup(cancel)
	return ctx
}

// strided returns n copies of size bytes that are no neighbours.
func strided(dst, src *mem.Region, n int, size int64) *mem.Batch {
	var b mem.Batch
	for i := range int64(n) {
		b.Dst = append(b.Dst, mem.Extent{Region: dst, Off: i * (size + 1), Len: size})
		b.Src = append(b.Src, mem.Extent{Region: src, Off: i * (size + 1), Len: size})
	}
	return &b
}

// TestEveryOperationFails fails each operation of the device in turn, on every path, and wants every failure told and
// every ticket that succeeded to have brought its bytes.
func TestEveryOperationFails(t *testing.T) {
	ops := map[stream.Path][]string{
		stream.PathCopyEngine:      {sim.OpCallCopy, sim.OpCopy},
		stream.PathCopyEngineBatch: {sim.OpCallBatch, sim.OpBatch},
		stream.PathKernel:          {sim.OpCallLaunch, sim.OpLaunch, sim.OpAllocHost, sim.OpFree},
	}
	for path, own := range ops {
		for _, op := range append(own, sim.OpOpen, sim.OpRecord, sim.OpWait) {
			t.Run(path.String()+" "+op, func(t *testing.T) {
				testkit.Sweep(t, op, errdefs.ErrNoMemory, func(t *testing.T, plan *fault.Plan) error {
					t.Helper()
					return useAll(t, plan, path)
				})
			})
		}
	}
}

// useAll uses everything that a stream has, on one path, and returns all that it said.
func useAll(t *testing.T, plan *fault.Plan, path stream.Path) (all error) {
	t.Helper()
	dev := openSim(t, sim.Options{Faults: plan})
	said := func(err error) bool {
		all = errors.Join(all, err)
		return err != nil
	}
	n := 3000 // enough for several steps
	if path == stream.PathCopyEngine {
		n = 150
	}
	dst, err := dev.AllocHost(int64(n) * 9)
	if said(err) {
		return all
	}
	defer func() { said(freeTwice(dev, dst)) }()
	src, err := dev.AllocHost(int64(n) * 9)
	if said(err) {
		return all
	}
	defer func() { said(freeTwice(dev, src)) }()
	for i := range src.Bytes() {
		src.Bytes()[i] = byte(i * 7)
	}

	s, err := streamcopy.Open(dev, streamcopy.Options{Path: path, Descriptors: streamcopy.MinDescriptors})
	if said(err) {
		return all
	}
	e, err := s.Record(deadline(t))
	if !said(err) {
		defer e.Close()
		said(s.WaitEvent(deadline(t), e))
	}
	for _, size := range []int{1, 20, n} {
		clear(dst.Bytes())
		b := strided(dst, src, size, 8)
		ticket, err := s.Submit(deadline(t), b)
		if said(err) {
			continue
		}
		if said(ticket.Wait(deadline(t))) {
			continue
		}
		for i := range b.Dst {
			if !bytes.Equal(b.Dst[i].Bytes(), b.Src[i].Bytes()) {
				t.Fatalf("the ticket succeeded, and copy %d of %d did not happen", i, size)
			}
		}
	}
	if said(s.Close(deadline(t))) {
		said(s.Close(deadline(t)))
	}
	return all
}

// freeTwice frees r, at the second try if the first was made to fail.
func freeTwice(dev *sim.Device, r *mem.Region) error {
	err := dev.Free(r)
	if err != nil {
		err = errors.Join(err, dev.Free(r))
	}
	return err
}

// stalledFailure is a batch of which the first part stalls on the device and a later part fails to be issued.
type stalledFailure struct {
	path  stream.Path
	work  string // stalls, the first
	call  string // fails, number n
	n     int
	cause error
}

// TestDefect04FailedLoadReportsDoneBeforeItsDMAStopped: a load that fails must not report done while what was issued of
// it can still write: the pages go to somebody else.
func TestDefect04FailedLoadReportsDoneBeforeItsDMAStopped(t *testing.T) {
	tests := []stalledFailure{
		{stream.PathCopyEngine, sim.OpCopy, sim.OpCallCopy, 5, errdefs.ErrNoMemory},    // in the same step
		{stream.PathCopyEngine, sim.OpCopy, sim.OpCallCopy, 200, errdefs.ErrNoMemory},  // in a later one
		{stream.PathCopyEngineBatch, sim.OpBatch, sim.OpCallBatch, 1, errdefs.ErrBusy}, // the second call
		{stream.PathKernel, sim.OpLaunch, sim.OpCallLaunch, 1, errdefs.ErrBusy},
		{stream.PathKernel, sim.OpLaunch, sim.OpRecord, 0, errdefs.ErrBusy}, // the event that would tell
	}
	for _, tt := range tests {
		t.Run(tt.path.String()+" "+tt.call, func(t *testing.T) {
			plan := fault.New(1, fault.Nth(tt.work, 0).Stall(), fault.Nth(tt.call, tt.n).Fail(tt.cause))
			dev := openSim(t, sim.Options{Faults: plan})
			s := open(t, dev, streamcopy.Options{Path: tt.path, Descriptors: 1024})
			dst, src := pinned(t, dev, 3000*9), pinned(t, dev, 3000*9)
			ticket, err := s.Submit(deadline(t), strided(dst, src, 3000, 8))
			if err != nil {
				t.Fatal(err)
			}
			if err := plan.Await(deadline(t), 2); err != nil {
				t.Fatal(err)
			}
			select {
			case <-ticket.Done():
				t.Fatalf("resolved while its copies had not stopped: %v", ticket.Err())
			case <-time.After(20 * time.Millisecond):
			}
			plan.Release()
			if err := ticket.Wait(deadline(t)); !errors.Is(err, tt.cause) {
				t.Fatalf("ticket: %v", err)
			}
			noLateWrites(t, dst)
			if err := s.Close(deadline(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestDefect10AbortThenPageReuse cancels while the first of several steps is stalled on the device: no more may be
// issued, and the pages are free only after what was issued has landed.
func TestDefect10AbortThenPageReuse(t *testing.T) {
	for path, op := range map[stream.Path]string{
		stream.PathCopyEngine: sim.OpCopy, stream.PathCopyEngineBatch: sim.OpBatch, stream.PathKernel: sim.OpLaunch,
	} {
		t.Run(path.String(), func(t *testing.T) {
			plan := fault.New(1, fault.Nth(op, 0).Stall())
			dev := openSim(t, sim.Options{Faults: plan})
			s := open(t, dev, streamcopy.Options{Path: path, Descriptors: 1024})
			const n = 20_000
			dst, src := pinned(t, dev, n*9), pinned(t, dev, n*9)
			ticket, err := s.Submit(deadline(t), strided(dst, src, n, 8))
			if err != nil {
				t.Fatal(err)
			}
			if err := plan.Await(deadline(t), 1); err != nil {
				t.Fatal(err)
			}
			ticket.Cancel()
			select {
			case <-ticket.Done():
				t.Fatalf("resolved while its copies had not stopped: %v", ticket.Err())
			case <-time.After(20 * time.Millisecond):
			}
			plan.Release()
			if err := ticket.Wait(deadline(t)); !errors.Is(err, errdefs.ErrCanceled) {
				t.Fatalf("ticket: %v", err)
			}
			noLateWrites(t, dst)
			if err := s.Err(); err != nil {
				t.Errorf("cancelling broke the stream: %v", err)
			}
			if err := s.Close(deadline(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

func noLateWrites(t *testing.T, r *mem.Region) {
	t.Helper()
	sentinel := bytes.Repeat([]byte{0xa5}, int(r.Len()))
	copy(r.Bytes(), sentinel)
	time.Sleep(5 * time.Millisecond)
	if !bytes.Equal(r.Bytes(), sentinel) {
		t.Error("memory was written after its ticket had resolved")
	}
}

func pinned(tb testing.TB, dev *sim.Device, n int64) *mem.Region {
	tb.Helper()
	r, err := dev.AllocHost(n)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := dev.Free(r); err != nil {
			tb.Error(err)
		}
	})
	return r
}

// TestQuarantine: neither the copies nor an event that would tell when they are done; the ticket must not resolve, and
// the stream must say so, until closing the queue has proved it idle.
func TestQuarantine(t *testing.T) {
	plan := fault.New(1, fault.Nth(sim.OpLaunch, 1).Stall(), fault.Nth(sim.OpRecord, 1).Fail(errdefs.ErrBusy), fault.Nth(sim.OpRecord, 2).Fail(errdefs.ErrBusy))
	dev := openSim(t, sim.Options{Faults: plan})
	s := open(t, dev, streamcopy.Options{Path: stream.PathKernel})
	dst, src := pinned(t, dev, 1000), pinned(t, dev, 1000)
	var tickets []*stream.Ticket
	gate := stream.NewTicket(1, nil)
	for range 3 {
		b := strided(dst, src, 10, 8)
		if len(tickets) == 1 {
			b.After = []mem.Dependency{gate}
		}
		ticket, err := s.Submit(deadline(t), b)
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, ticket)
	}
	gate.Resolve(stream.Completion{}, nil)
	if err := tickets[0].Wait(deadline(t)); err != nil {
		t.Errorf("the batch before the failure: %v", err)
	}
	begun := time.Now()
	for s.Quarantined() < 2 { // the third never started, but tickets resolve in order
		if time.Since(begun) > patience {
			t.Fatalf("%d tickets in quarantine", s.Quarantined())
		}
		time.Sleep(time.Millisecond)
	}
	if _, err := s.Submit(t.Context(), &mem.Batch{}); !errors.Is(err, errdefs.ErrBroken) || !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("submit on a broken stream: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close with the device at work: %v", err)
	}
	select {
	case <-tickets[1].Done():
		t.Fatalf("resolved without proof: %v", tickets[1].Err())
	case <-tickets[2].Done():
		t.Fatalf("resolved before the one before it: %v", tickets[2].Err())
	default:
	}
	plan.Release()
	if err := s.Close(deadline(t)); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := tickets[1].Wait(deadline(t)); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("ticket: %v", err)
	}
	if err := tickets[2].Wait(deadline(t)); !errors.Is(err, errdefs.ErrBroken) {
		t.Errorf("ticket behind: %v", err)
	}
	if n := s.Quarantined(); n != 0 {
		t.Errorf("%d tickets in quarantine after close", n)
	}
	noLateWrites(t, dst)
}
