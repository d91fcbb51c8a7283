package nic_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/rdmatest"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/nic"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// The defects of this file were seen in published streams over NICs.

func submit(tb testing.TB, s *nic.Stream, b *mem.Batch) *stream.Ticket {
	tb.Helper()
	t, err := s.Submit(deadline(tb), b)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

func ok(tb testing.TB, t *stream.Ticket) {
	tb.Helper()
	if err := t.Wait(deadline(tb)); err != nil {
		tb.Fatal(err)
	}
}

// copiesBytes copies n pieces from one pinned region to another through gpu, and checks the bytes.
func copiesBytes(tb testing.TB, s *nic.Stream, dst, gpu, src *mem.Region, n int, size int64) {
	tb.Helper()
	for i := range src.Bytes() {
		src.Bytes()[i] = byte(i*7 + i>>8)
	}
	clear(dst.Bytes())
	there, back := streamtest.Strided(gpu, src, n, size), streamtest.Strided(dst, gpu, n, size)
	submit(tb, s, there)
	ok(tb, submit(tb, s, back))
	for i := range back.Dst {
		if !bytes.Equal(back.Dst[i].Bytes(), there.Src[i].Bytes()) {
			tb.Fatalf("copy %d of %d did not happen", i, n)
		}
	}
}

// TestDefectDroppedCallbackAnsweredOK checks that a failure in the middle of a chain of requests is
// reported, although that request is not signaled.
func TestDefectDroppedCallbackAnsweredOK(t *testing.T) {
	plan := fault.New(1, fault.Nth(soft.OpWrite, 7).Fail(errors.New("parity")))
	g := newRig(t, rigOptions{soft: soft.Options{Faults: plan}})
	s := g.openUntilEnd(t, nic.Options{})
	ticket := submit(t, s, streamtest.Strided(g.device(t, 1000), g.pinned(t, 1000), 20, 8))
	behind, err := s.Submit(deadline(t), &mem.Batch{})
	wantErr(t, ticket.Wait(deadline(t)), fault.ErrInjected)
	if err == nil {
		err = behind.Wait(deadline(t))
	}
	wantErr(t, err, errdefs.ErrBroken, fault.ErrInjected)
}

// TestDefectStatusAndVendorErrorDropped checks that the error contains all available information
// about the failed request.
func TestDefectStatusAndVendorErrorDropped(t *testing.T) {
	plan := fault.New(1, fault.Nth(soft.OpRead, 3).Fail(nil))
	g := newRig(t, rigOptions{soft: soft.Options{Faults: plan}})
	s := g.openUntilEnd(t, nic.Options{})
	dst, src := g.pinned(t, 1000), g.device(t, 1000)
	err := submit(t, s, streamtest.Strided(dst, src, 20, 8)).Wait(deadline(t))
	var failed *nic.RequestError
	if !errors.As(err, &failed) {
		t.Fatalf("error %v", err)
	}
	if failed.WC.Status == rdma.WCSuccess || failed.WC.Status == rdma.WCWRFlushErr || failed.WC.VendorErr == 0 {
		t.Errorf("status %s, vendor error %#x", failed.WC.Status, failed.WC.VendorErr)
	}
	if failed.Opcode != rdma.WRRDMARead || failed.Bytes != 8 || failed.SGEs != 1 || failed.NIC != "soft0" ||
		failed.RemoteAddr != uint64(src.Dev())+3*9 || failed.Local != uint64(dst.Dev())+3*9 {
		t.Errorf("request %+v", failed)
	}
	for _, part := range []string{failed.WC.Status.String(), "vendor error", "RDMA_READ", "soft0", "nic-soft"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not contain %q", err, part)
		}
	}
}

// TestDefectWaitWithoutDeadline checks a request that neither completes nor fails. The stream gives
// it up after a timeout. Its ticket resolves when no more bytes can be written: at once if the copy
// has not started, otherwise after it has completed.
func TestDefectWaitWithoutDeadline(t *testing.T) {
	for _, moving := range []bool{false, true} {
		nics, gpu := fault.New(1), fault.New(1)
		g := newRig(t, rigOptions{sim: sim.Options{Faults: gpu}, soft: soft.Options{Faults: nics, DrainTimeout: 20 * time.Millisecond}})
		timeout := 20 * time.Millisecond
		if moving {
			timeout = 2 * time.Second // the copy must start within this time
		}
		s := g.open(t, nic.Options{Timeout: timeout})
		dst, src := g.pinned(t, 1000), g.device(t, 1000)
		if moving {
			gpu.Add(fault.Nth(sim.OpWork, int(gpu.Seen(sim.OpWork))).Stall())
		} else {
			nics.Add(fault.Nth(soft.OpRead, 0).Stall())
		}
		ticket := submit(t, s, streamtest.Strided(dst, src, 20, 8))
		for ctx := deadline(t); s.Err() == nil && ctx.Err() == nil; {
			time.Sleep(time.Millisecond)
		}
		if !errors.Is(s.Err(), context.DeadlineExceeded) {
			t.Errorf("moving %v: the stream waits on, its error is %v", moving, s.Err())
			nics.Release()
			gpu.Release()
		}
		if moving {
			select {
			case <-ticket.Done():
				t.Error("resolved while its bytes were moving")
			case <-time.After(50 * time.Millisecond):
			}
			gpu.Release()
		}
		wantErr(t, ticket.Wait(deadline(t)), context.DeadlineExceeded)
		nics.Release()
		noLateWrites(t, dst)
		// Close may report that a queue pair refused to be reset.
		if err := s.Close(deadline(t)); err != nil && (!moving || !errors.Is(err, errdefs.ErrBusy)) {
			t.Errorf("close, moving %v: %v", moving, err)
		}
		if err := s.Close(deadline(t)); err != nil {
			t.Errorf("close: %v", err)
		}
	}
}

// TestRefusedReset checks queue pairs that cannot be reset because their NIC does not respond. The
// stream retries, and the ticket stays unresolved until a reset succeeds.
func TestRefusedReset(t *testing.T) {
	plan := fault.New(1)
	g := newRig(t, rigOptions{soft: soft.Options{Faults: plan}})
	s := g.open(t, nic.Options{Timeout: 20 * time.Millisecond})
	dst, src := g.pinned(t, 1000), g.device(t, 1000)
	begun, before := time.Now(), plan.Seen(soft.OpModifyQP)
	plan.Add(fault.After(soft.OpModifyQP, int(before)).Fail(nil))
	plan.Add(fault.Nth(soft.OpRead, 0).Stall())
	ticket := submit(t, s, streamtest.Strided(dst, src, 20, 8))
	tries := func() int64 { return plan.Seen(soft.OpModifyQP) - before }
	for ctx := deadline(t); tries() < 2 && ctx.Err() == nil; {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := ticket.Wait(ctx); ctx.Err() == nil {
		t.Errorf("the ticket resolved before its work was known to have ended: %v", err)
	}
	wantErr(t, s.Close(ctx), context.DeadlineExceeded, fault.ErrInjected)
	if n, took := tries(), time.Since(begun); n < 2 || n > 4+int64(took/(5*time.Millisecond)) {
		t.Errorf("tried to reset %d times in %v", n, took)
	}
	plan.Clear()
	if err := ticket.Wait(deadline(t)); err != nil { // the requests may have completed before the queue pair was stopped
		wantErr(t, err, context.DeadlineExceeded)
	}
	noLateWrites(t, dst)
	wantErr(t, s.Err(), context.DeadlineExceeded)
	if err := s.Close(deadline(t)); err != nil {
		wantErr(t, err, fault.ErrInjected) // the refused resets
		if err := s.Close(deadline(t)); err != nil {
			t.Error(err)
		}
	}
}

// TestDefectFullRingLeavesHalfABatch submits a batch that is many times larger than the queue.
func TestDefectFullRingLeavesHalfABatch(t *testing.T) {
	g := newRig(t, rigOptions{})
	s := g.openUntilEnd(t, nic.Options{SendDepth: 2, QueueDepth: 1})
	const n = 3000
	copiesBytes(t, s, g.pinned(t, n*9), g.device(t, n*9), g.pinned(t, n*9), n, 8)
}

// TestDefectDeregistrationInFlight unregisters the destination of a running copy.
func TestDefectDeregistrationInFlight(t *testing.T) {
	gpu := fault.New(1)
	g := newRig(t, rigOptions{sim: sim.Options{Faults: gpu}, soft: soft.Options{DrainTimeout: 20 * time.Millisecond}})
	s := g.openUntilEnd(t, nic.Options{})
	dst, src := g.pinned(t, 1000), g.device(t, 1000)
	t.Cleanup(gpu.Release) // otherwise stalled work would outlast a failed test
	gpu.Add(fault.Nth(sim.OpWork, int(gpu.Seen(sim.OpWork))).Stall())
	ticket := submit(t, s, streamtest.Strided(dst, src, 20, 8))
	if err := gpu.Await(deadline(t), 1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	wantErr(t, g.nics[0].Unregister(ctx, dst), errdefs.ErrBusy, context.DeadlineExceeded)
	if _, err := s.Submit(t.Context(), streamtest.Strided(dst, src, 1, 8)); !errors.Is(err, errdefs.ErrInvalid) || !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("submit with memory that is being unregistered: %v", err)
	}
	gpu.Release()
	ok(t, ticket)
	if err := g.nics[0].Unregister(deadline(t), dst); err != nil {
		t.Error(err)
	}
}

// TestDefectRegistrationPerTransfer checks that unregistered memory is refused, or registered once
// with RegisterOnUse.
func TestDefectRegistrationPerTransfer(t *testing.T) {
	for _, onUse := range []bool{false, true} {
		plan := fault.New(1)
		g := newRig(t, rigOptions{soft: soft.Options{Faults: plan}})
		s := g.openUntilEnd(t, nic.Options{RegisterOnUse: onUse})
		dst, err := g.dev.AllocHost(1000)
		if err != nil {
			t.Fatal(err)
		}
		src := g.device(t, 1000)
		before := plan.Seen(soft.OpRegMR)
		for range 50 {
			ticket, err := s.Submit(deadline(t), streamtest.Strided(dst, src, 20, 8))
			if !onUse {
				wantErr(t, err, errdefs.ErrInvalid, errdefs.ErrNotFound)
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			ok(t, ticket)
		}
		want := int64(0)
		if onUse {
			want = 1
		}
		if n := plan.Seen(soft.OpRegMR) - before; n != want {
			t.Errorf("%d registrations, on use %v", n, onUse)
		}
		if err := registry.Unregister(deadline(t), g.nics, dst); err != nil {
			t.Error(err)
		}
		if err := g.dev.Free(dst); err != nil {
			t.Error(err)
		}
	}
}

// TestDefectContextDomainAndRegistrationPerStream checks that several streams share one context,
// one protection domain and the registrations, whether they are opened before or after the
// registration.
func TestDefectContextDomainAndRegistrationPerStream(t *testing.T) {
	plan := fault.New(1)
	g := newRig(t, rigOptions{soft: soft.Options{Faults: plan}})
	first := g.openUntilEnd(t, nic.Options{})
	dst, gpu, src := g.pinned(t, 1000), g.device(t, 1000), g.pinned(t, 1000)
	for _, s := range []*nic.Stream{first, g.openUntilEnd(t, nic.Options{}), g.openUntilEnd(t, nic.Options{})} {
		copiesBytes(t, s, dst, gpu, src, 20, 8)
	}
	for op, want := range map[string]int64{soft.OpOpen: 1, soft.OpAllocPD: 1, soft.OpRegMR: 3} {
		if n := plan.Seen(op); n != want {
			t.Errorf("%d times %s for three streams, want %d", n, op, want)
		}
	}
}

// TestDefectPortGIDAndMTUHardCoded uses a NIC whose first port is down, whose first GID is empty
// and whose MTU is small.
func TestDefectPortGIDAndMTUHardCoded(t *testing.T) {
	g := newRig(t, rigOptions{soft: soft.Options{Devices: []soft.DeviceOptions{{Ports: []soft.PortOptions{
		{Down: true}, {MTU: rdma.MTU1024, GIDs: []rdma.GID{{}, {0: 0xfe, 1: 0x80, 15: 9}, {10: 0xff, 11: 0xff, 12: 10, 15: 9}}},
	}}}}})
	s := g.openUntilEnd(t, nic.Options{})
	a := s.QueuePairs(t)[0].Attr
	if a.Port != 2 || a.Address.GIDIndex != 2 || a.PathMTU != rdma.MTU1024 {
		t.Errorf("port %d, GID %d, MTU %s", a.Port, a.Address.GIDIndex, a.PathMTU)
	}
	copiesBytes(t, s, g.pinned(t, 1000), g.device(t, 1000), g.pinned(t, 1000), 20, 8)

	o := nic.Options{NICs: []nic.NIC{{Registry: g.nics[0], Connect: rdma.ConnectOptions{Port: 2, GIDIndex: 1, MTU: rdma.MTU256}}}}
	named, err := nic.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	a = named.QueuePairs(t)[0].Attr
	if a.Port != 2 || a.Address.GIDIndex != 1 || a.PathMTU != rdma.MTU256 {
		t.Errorf("with explicit options: port %d, GID %d, MTU %s", a.Port, a.Address.GIDIndex, a.PathMTU)
	}
	if err := named.Close(deadline(t)); err != nil {
		t.Error(err)
	}
}

// heldMover delays transfers until release is closed.
type heldMover struct {
	soft.Mover
	held    atomic.Int64
	release chan struct{}
	work    sync.WaitGroup
}

func (m *heldMover) Move(t *soft.Transfer) {
	m.held.Add(1)
	m.work.Go(func() { <-m.release; m.Mover.Move(t) })
}

// TestDefectOneReadOutstanding uses a NIC that allows nine outstanding reads. With all transfers
// delayed, exactly nine reads of a dump must be outstanding.
func TestDefectOneReadOutstanding(t *testing.T) {
	m := &heldMover{Mover: rdmatest.NullMover{}, release: make(chan struct{})}
	g := newRig(t, rigOptions{soft: soft.Options{
		Mover: m, Schedule: &soft.Schedule{Seed: 1},
		Devices: []soft.DeviceOptions{{Limits: rdma.DeviceInfo{MaxQPRDAtomic: 9, MaxQPInitRDAtomic: 12}}},
	}})
	s := g.openUntilEnd(t, nic.Options{})
	ticket := submit(t, s, streamtest.Strided(g.pinned(t, 1000), g.device(t, 1000), 50, 8))
	for end := time.Now().Add(testkit.Patience()); m.held.Load() < 9 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(5 * time.Millisecond) // time for one read too many
	if n := m.held.Load(); n != 9 {
		t.Errorf("%d reads are outstanding on a NIC that allows 9", n)
	}
	close(m.release)
	ok(t, ticket)
	m.work.Wait()
	if n := m.held.Load(); n != 50 {
		t.Errorf("%d reads in all", n)
	}
}

// TestDefectSignalAndDoorbellPerCopy checks that a batch that fits one chain needs one doorbell and
// one completion.
func TestDefectSignalAndDoorbellPerCopy(t *testing.T) {
	plan := fault.New(1)
	g := newRig(t, rigOptions{soft: soft.Options{Faults: plan}})
	s := g.openUntilEnd(t, nic.Options{})
	ok(t, submit(t, s, streamtest.Strided(g.device(t, 4000), g.pinned(t, 4000), 200, 8)))
	requests, signaled, _, _ := s.Posted(t)
	if doorbells := plan.Seen(soft.OpPostSend); requests != 200 || signaled != 1 || doorbells != 1 {
		t.Errorf("%d requests, %d completions, %d doorbells", requests, signaled, doorbells)
	}
}

// TestDefectNoSplitAtMaxMessage uses a port with a small maximum message size, and copies that are
// not multiples of it.
func TestDefectNoSplitAtMaxMessage(t *testing.T) {
	g := newRig(t, rigOptions{soft: soft.Options{Devices: []soft.DeviceOptions{{Ports: []soft.PortOptions{{MaxMessageBytes: 1000}}}}}})
	s := g.openUntilEnd(t, nic.Options{})
	copiesBytes(t, s, g.pinned(t, 30_030), g.device(t, 30_030), g.pinned(t, 30_030), 3, 10_007)
	if requests, _, _, longest := s.Posted(t); longest != 1000 || requests != 2*3*11 {
		t.Errorf("%d requests, the longest of %d bytes", requests, longest)
	}
}

// TestDefectGPUWritesNotFlushed checks that loads resolve after the flush of the GPU, that dumps
// need none, and that a failed flush fails the load.
func TestDefectGPUWritesNotFlushed(t *testing.T) {
	g := newRig(t, rigOptions{sim: sim.Options{Index: 3}})
	var devices []int
	var load *stream.Ticket
	cause := errors.New("no flush today")
	var answer error
	began := make(chan struct{})
	s := g.openUntilEnd(t, nic.Options{Flush: func(device int) error {
		<-began // load is set
		devices = append(devices, device)
		select {
		case <-load.Done():
			t.Error("resolved before the flush")
		default:
		}
		return answer
	}})
	gpu, host := g.device(t, 1000), g.pinned(t, 1000)
	gate := stream.NewTicket(1, nil)
	held := streamtest.Strided(gpu, host, 20, 8)
	held.After = []mem.Dependency{gate}
	load = submit(t, s, held)
	close(began)
	gate.Resolve(stream.Completion{}, nil)
	ok(t, load)
	ok(t, submit(t, s, streamtest.Strided(host, gpu, 20, 8)))
	if len(devices) != 1 || devices[0] != 3 {
		t.Errorf("flushed devices %v after a load and a dump", devices)
	}
	answer = cause
	load = stream.NewTicket(1, nil)
	wantErr(t, submit(t, s, streamtest.Strided(gpu, host, 20, 8)).Wait(deadline(t)), cause)
	if _, err := s.Submit(t.Context(), &mem.Batch{}); !errors.Is(err, errdefs.ErrBroken) {
		t.Errorf("submit after a failed flush: %v", err)
	}
}
