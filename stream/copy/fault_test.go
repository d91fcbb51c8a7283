package copy_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
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
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/stream/streamtest"
)

var patience = testkit.Patience()

func deadline(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	tb.Cleanup(cancel)
	return ctx
}

// TestEveryOperationFails fails each operation of the device in turn, on every path, and wants every failure told and
// every ticket that succeeded to have brought its bytes.
func TestEveryOperationFails(t *testing.T) {
	kernel := []string{sim.OpCallLaunch, sim.OpLaunch, sim.OpAllocHost, sim.OpFree}
	staged := append([]string{sim.OpCallCopy, sim.OpCopy, sim.OpCallBatch, sim.OpBatch, sim.OpAlloc}, kernel...)
	tests := []struct {
		name string
		use  user
		ops  []string
	}{
		{"", user{path: stream.PathCopyEngine}, []string{sim.OpCallCopy, sim.OpCopy, sim.OpCallBatch, sim.OpBatch}},
		{"one by one ", user{path: stream.PathCopyEngine, copies: 150, bare: true}, []string{sim.OpCallCopy, sim.OpCopy}},
		{"", user{path: stream.PathKernel}, kernel},
		{"", user{path: stream.PathStaged}, staged},
		{"in planned chunks ", user{path: stream.PathStaged, chunk: 4 << 10}, staged},
		{"peer ", user{path: stream.PathCopyEngine, copies: 150, peers: true}, []string{sim.OpCallCopy, sim.OpCopy}},
		{"peer ", user{path: stream.PathKernel, peers: true}, kernel},
	}
	for _, tt := range tests {
		for _, op := range slices.Concat(tt.ops, []string{sim.OpOpen, sim.OpRecord, sim.OpWait}) {
			t.Run(tt.name+tt.use.path.String()+" "+op, func(t *testing.T) {
				testkit.Sweep(t, op, errdefs.ErrNoMemory, tt.use.all)
			})
		}
	}
}

// user uses everything that a stream has, on one path.
type user struct {
	path   stream.Path
	copies int   // enough for several steps; zero: 600
	chunk  int64 // the path is not forced but planned, with chunks of so many bytes
	bare   bool  // the device takes single copies only
	peers  bool  // it copies between two devices
}

// all returns all that was said.
func (u user) all(t *testing.T, faults *fault.Plan) (all error) {
	t.Helper()
	said := func(err error) bool {
		all = errors.Join(all, err)
		return err != nil
	}
	if u.copies == 0 {
		u.copies = 600
	}
	dev, far := simPeers(t, sim.Options{Faults: faults})
	var regions [3]*mem.Region // from the first to the second, to the third
	for i, m := range u.memories(dev, far) {
		var err error
		if regions[i], err = m(int64(u.copies) * 9); said(err) {
			return all
		}
		defer func() { said(freeTwice(dev, far, regions[i])) }()
	}
	src, middle, dst := regions[0], regions[1], regions[2]

	o := streamcopy.Options{Path: u.path, Descriptors: streamcopy.MinDescriptors, StagingBytes: 16 << 10}
	if u.chunk > 0 {
		o.Path, o.Planner = stream.PathNone, &decider{choice: plan.Choice{Path: u.path, ChunkBytes: u.chunk}}
	}
	s, err := streamcopy.Open(u.sees(dev), o)
	if said(err) {
		return all
	}
	e, err := s.Record(deadline(t))
	if !said(err) {
		defer e.Close()
		said(s.WaitEvent(deadline(t), e))
	}
	want := make([]byte, src.Len())
	for i := range want {
		want[i] = byte(i * 7)
	}
	memoryOf(src, far).Write(t, mem.All(src), want)
	for _, size := range []int{1, 20, u.copies} {
		memoryOf(dst, far).Write(t, mem.All(dst), make([]byte, dst.Len()))
		back := streamtest.Strided(dst, middle, size, 8)
		if err := allOf(t, s, parts(streamtest.Strided(middle, src, size, 8)), parts(back)); said(err) {
			continue
		}
		got := memoryOf(dst, far).Read(t, mem.All(dst))
		for _, e := range back.Dst {
			if !bytes.Equal(got[e.Off:e.Off+e.Len], want[e.Off:e.Off+e.Len]) {
				t.Fatalf("the tickets succeeded, and the copy at %d of %d did not happen", e.Off, size)
			}
		}
	}
	if said(s.Close(deadline(t))) {
		said(s.Close(deadline(t)))
	}
	return all
}

// sees returns dev as the stream sees it.
func (u user) sees(dev *sim.Device) device.Device {
	if u.bare {
		return lesser{dev, bare}
	}
	return dev
}

// memories returns how to get the three regions that the path copies between.
func (u user) memories(dev, far *sim.Device) [3]func(int64) (*mem.Region, error) {
	gpu := func(d *sim.Device) func(int64) (*mem.Region, error) {
		return func(n int64) (*mem.Region, error) { return d.Alloc(n, device.AllocOptions{}) }
	}
	if u.peers {
		return [3]func(int64) (*mem.Region, error){gpu(dev), gpu(far), gpu(dev)}
	}
	return [3]func(int64) (*mem.Region, error){dev.AllocHost, gpu(dev), dev.AllocHost}
}

// memoryOf is the memory that r is of: what is a device's is seen through far, which reaches it and has no faults.
func memoryOf(r *mem.Region, far device.Device) streamtest.Memory {
	if r.Kind() == mem.KindDevice {
		return streamtest.DeviceMemory(far)
	}
	return streamtest.Pinned(far)
}

// parts cuts b into batches.
func parts(b *mem.Batch) []*mem.Batch {
	const most = 5
	var all []*mem.Batch
	for at, n := 0, (len(b.Dst)+most-1)/most; at < len(b.Dst); at += n {
		end := min(at+n, len(b.Dst))
		all = append(all, &mem.Batch{Dst: b.Dst[at:end], Src: b.Src[at:end]})
	}
	return all
}

// allOf submits the batches, waits for all, and returns all that was said.
func allOf(t *testing.T, s *streamcopy.Stream, batches ...[]*mem.Batch) (all error) {
	t.Helper()
	var tickets []*stream.Ticket
	for _, b := range slices.Concat(batches...) {
		ticket, err := s.Submit(deadline(t), b)
		if err == nil {
			tickets = append(tickets, ticket)
		}
		all = errors.Join(all, err)
	}
	for _, ticket := range tickets {
		all = errors.Join(all, ticket.Wait(deadline(t)), ticket.Completion().GivenUp)
	}
	return all
}

// freeTwice frees r, of one device or the other, at the second try if the first was made to fail.
func freeTwice(dev, far *sim.Device, r *mem.Region) error {
	if r.Kind() == mem.KindDevice && r.Device() == far.Info().Index {
		dev = far
	}
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
		{stream.PathCopyEngine, sim.OpCopy, sim.OpCallCopy, 5, errdefs.ErrNoMemory},   // in the same step
		{stream.PathCopyEngine, sim.OpCopy, sim.OpCallCopy, 200, errdefs.ErrNoMemory}, // in a later one
		{stream.PathCopyEngine, sim.OpBatch, sim.OpCallBatch, 1, errdefs.ErrBusy},     // the second call
		{stream.PathKernel, sim.OpLaunch, sim.OpCallLaunch, 1, errdefs.ErrBusy},
		{stream.PathKernel, sim.OpLaunch, sim.OpRecord, 0, errdefs.ErrBusy}, // the event that would tell
		// Either queue of the staged path may be the late one.
		{stream.PathStaged, sim.OpLaunch, sim.OpCallLaunch, 1, errdefs.ErrBusy},
		{stream.PathStaged, sim.OpBatch, sim.OpCallLaunch, 1, errdefs.ErrBusy},
		{stream.PathStaged, sim.OpLaunch, sim.OpCallBatch, 1, errdefs.ErrBusy},
		{stream.PathStaged, sim.OpBatch, sim.OpCallBatch, 1, errdefs.ErrBusy},
		{stream.PathStaged, sim.OpBatch, sim.OpWait, 1, errdefs.ErrBusy},
		{stream.PathStaged, sim.OpBatch, sim.OpRecord, 1, errdefs.ErrBusy},
	}
	for _, tt := range tests {
		t.Run(tt.path.String()+" "+tt.call, func(t *testing.T) {
			faults := fault.New(1, fault.Nth(tt.work, 0).Stall(), fault.Nth(tt.call, tt.n).Fail(tt.cause))
			dev := openSim(t, sim.Options{Faults: faults})
			one := user{bare: tt.path == stream.PathCopyEngine && tt.work == sim.OpCopy}
			s := open(t, one.sees(dev), streamcopy.Options{Path: tt.path, Descriptors: 1024, StagingBytes: 32 << 10})
			const n, size = 3000, 64
			dst, src := pinned(t, dev, n*(size+1)), deviceMemory(t, dev, n*(size+1))
			ticket, err := s.Submit(deadline(t), streamtest.Strided(dst, src, n, size))
			if err != nil {
				t.Fatal(err)
			}
			if err := faults.Await(deadline(t), 2); err != nil {
				t.Fatal(err)
			}
			select {
			case <-ticket.Done():
				t.Fatalf("resolved while its copies had not stopped: %v", ticket.Err())
			case <-time.After(20 * time.Millisecond):
			}
			faults.Release()
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
	tests := []struct {
		path stream.Path
		op   string
	}{
		{stream.PathCopyEngine, sim.OpCopy},
		{stream.PathCopyEngine, sim.OpBatch},
		{stream.PathKernel, sim.OpLaunch},
		{stream.PathStaged, sim.OpLaunch},
		{stream.PathStaged, sim.OpBatch},
	}
	for _, tt := range tests {
		t.Run(tt.path.String()+" "+tt.op, func(t *testing.T) {
			faults := fault.New(1, fault.Nth(tt.op, 0).Stall())
			dev := openSim(t, sim.Options{Faults: faults})
			one := user{bare: tt.path == stream.PathCopyEngine && tt.op == sim.OpCopy}
			s := open(t, one.sees(dev), streamcopy.Options{Path: tt.path, Descriptors: 1024, StagingBytes: 32 << 10})
			const n = 20_000
			dst, src := pinned(t, dev, n*9), deviceMemory(t, dev, n*9)
			ticket, err := s.Submit(deadline(t), streamtest.Strided(dst, src, n, 8))
			if err != nil {
				t.Fatal(err)
			}
			if err := faults.Await(deadline(t), 1); err != nil {
				t.Fatal(err)
			}
			ticket.Cancel()
			select {
			case <-ticket.Done():
				t.Fatalf("resolved while its copies had not stopped: %v", ticket.Err())
			case <-time.After(20 * time.Millisecond):
			}
			faults.Release()
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
	faults := fault.New(1, fault.Nth(sim.OpLaunch, 1).Stall(), fault.Nth(sim.OpRecord, 1).Fail(errdefs.ErrBusy), fault.Nth(sim.OpRecord, 2).Fail(errdefs.ErrBusy))
	dev := openSim(t, sim.Options{Faults: faults})
	s := open(t, dev, streamcopy.Options{Path: stream.PathKernel})
	dst, src := pinned(t, dev, 1000), pinned(t, dev, 1000)
	var tickets []*stream.Ticket
	gate := stream.NewTicket(1, nil)
	for range 3 {
		b := streamtest.Strided(dst, src, 10, 8)
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
	faults.Release()
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
