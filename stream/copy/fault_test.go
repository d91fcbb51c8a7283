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

// TestEveryOperationFails fails operation N of each kind on every path. Every failure must be
// reported, and every ticket without an error must have copied its bytes.
func TestEveryOperationFails(t *testing.T) {
	kernel := []string{sim.OpCallLaunch, sim.OpLaunch, sim.OpAllocHost, sim.OpFree}
	staged := append([]string{sim.OpCallCopy, sim.OpCopy, sim.OpCallBatch, sim.OpBatch, sim.OpAlloc}, kernel...)
	tests := []struct {
		name string
		use  pathUse
		ops  []string
	}{
		{"", pathUse{path: stream.PathCopyEngine}, []string{sim.OpCallCopy, sim.OpCopy, sim.OpCallBatch, sim.OpBatch}},
		{"one by one ", pathUse{path: stream.PathCopyEngine, copies: 150, bare: true}, []string{sim.OpCallCopy, sim.OpCopy}},
		{"", pathUse{path: stream.PathKernel}, kernel},
		{"", pathUse{path: stream.PathStaged}, staged},
		{"in planned chunks ", pathUse{path: stream.PathStaged, chunk: 4 << 10}, staged},
		{"peer ", pathUse{path: stream.PathCopyEngine, copies: 150, peers: true}, []string{sim.OpCallCopy, sim.OpCopy}},
		{"peer ", pathUse{path: stream.PathKernel, peers: true}, kernel},
	}
	for _, tt := range tests {
		for _, op := range slices.Concat(tt.ops, []string{sim.OpOpen, sim.OpRecord, sim.OpWait}) {
			t.Run(tt.name+tt.use.path.String()+" "+op, func(t *testing.T) {
				testkit.Sweep(t, op, errdefs.ErrNoMemory, tt.use.run)
			})
		}
	}
}

// pathUse describes a run that uses all functions of a stream on one path.
type pathUse struct {
	path   stream.Path
	copies int   // enough for several steps; 0: 600
	chunk  int64 // if not 0, the path is planned with this chunk size instead of forced
	bare   bool  // the device supports single copies only
	peers  bool  // copy between two devices
}

// run opens a stream, copies bytes and closes everything. It returns the joined errors of all
// calls.
func (u pathUse) run(t *testing.T, faults *fault.Plan) (all error) {
	t.Helper()
	failed := func(err error) bool {
		all = errors.Join(all, err)
		return err != nil
	}
	if u.copies == 0 {
		u.copies = 600
	}
	dev, far := simPeers(t, sim.Options{Faults: faults})
	var regions [3]*mem.Region // bytes go from the first to the second to the third
	for i, m := range u.memories(dev, far) {
		var err error
		if regions[i], err = m(int64(u.copies) * 9); failed(err) {
			return all
		}
		defer func() { failed(freeTwice(dev, far, regions[i])) }()
	}
	src, middle, dst := regions[0], regions[1], regions[2]

	o := streamcopy.Options{Path: u.path, Descriptors: streamcopy.MinDescriptors, StagingBytes: 16 << 10}
	if u.chunk > 0 {
		o.Path, o.Planner = stream.PathNone, &fixedPlanner{choice: plan.Choice{Path: u.path, ChunkBytes: u.chunk}}
	}
	s, err := streamcopy.Open(u.sees(dev), o)
	if failed(err) {
		return all
	}
	e, err := s.Record(deadline(t))
	if !failed(err) {
		defer e.Close()
		failed(s.WaitEvent(deadline(t), e))
	}
	want := make([]byte, src.Len())
	for i := range want {
		want[i] = byte(i * 7)
	}
	memoryOf(src, far).Write(t, mem.All(src), want)
	for _, size := range []int{1, 20, u.copies} {
		memoryOf(dst, far).Write(t, mem.All(dst), make([]byte, dst.Len()))
		back := streamtest.Strided(dst, middle, size, 8)
		if err := submitAll(t, s, parts(streamtest.Strided(middle, src, size, 8)), parts(back)); failed(err) {
			continue
		}
		got := memoryOf(dst, far).Read(t, mem.All(dst))
		for _, e := range back.Dst {
			if !bytes.Equal(got[e.Off:e.Off+e.Len], want[e.Off:e.Off+e.Len]) {
				t.Fatalf("the tickets succeeded, and the copy at %d of %d did not happen", e.Off, size)
			}
		}
	}
	if failed(s.Close(deadline(t))) {
		failed(s.Close(deadline(t)))
	}
	return all
}

// sees returns the device that the stream uses.
func (u pathUse) sees(dev *sim.Device) device.Device {
	if u.bare {
		return limitedDevice{dev, bare}
	}
	return dev
}

// memories returns the allocators of the three regions that the path copies between.
func (u pathUse) memories(dev, far *sim.Device) [3]func(int64) (*mem.Region, error) {
	gpu := func(d *sim.Device) func(int64) (*mem.Region, error) {
		return func(n int64) (*mem.Region, error) { return d.Alloc(n, device.AllocOptions{}) }
	}
	if u.peers {
		return [3]func(int64) (*mem.Region, error){gpu(dev), gpu(far), gpu(dev)}
	}
	return [3]func(int64) (*mem.Region, error){dev.AllocHost, gpu(dev), dev.AllocHost}
}

// memoryOf returns access to the memory of r. Device memory is accessed through far, which has no
// faults.
func memoryOf(r *mem.Region, far device.Device) streamtest.Memory {
	if r.Kind() == mem.KindDevice {
		return streamtest.DeviceMemory(far)
	}
	return streamtest.Pinned(far)
}

// parts splits b into at most five batches.
func parts(b *mem.Batch) []*mem.Batch {
	const most = 5
	var all []*mem.Batch
	for at, n := 0, (len(b.Dst)+most-1)/most; at < len(b.Dst); at += n {
		end := min(at+n, len(b.Dst))
		all = append(all, &mem.Batch{Dst: b.Dst[at:end], Src: b.Src[at:end]})
	}
	return all
}

// submitAll submits the batches, waits for all of them and returns the joined errors.
func submitAll(t *testing.T, s *streamcopy.Stream, batches ...[]*mem.Batch) (all error) {
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

// freeTwice frees r on the device that owns it. If the first attempt fails, it tries again and
// joins the errors.
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

// stalledFailure is a batch whose first part stalls on the device while a later part cannot be
// issued.
type stalledFailure struct {
	path  stream.Path
	work  string // the first operation of this kind stalls
	call  string // call number n of this kind fails
	n     int
	cause error
}

// TestDefect04FailedLoadReportsDoneBeforeItsDMAStopped checks that a failed load does not complete
// while its issued copies can still write. The pages may have a new owner after that.
func TestDefect04FailedLoadReportsDoneBeforeItsDMAStopped(t *testing.T) {
	tests := []stalledFailure{
		{stream.PathCopyEngine, sim.OpCopy, sim.OpCallCopy, 5, errdefs.ErrNoMemory},   // in the same step
		{stream.PathCopyEngine, sim.OpCopy, sim.OpCallCopy, 200, errdefs.ErrNoMemory}, // in a later step
		{stream.PathCopyEngine, sim.OpBatch, sim.OpCallBatch, 1, errdefs.ErrBusy},     // the second call
		{stream.PathKernel, sim.OpLaunch, sim.OpCallLaunch, 1, errdefs.ErrBusy},
		{stream.PathKernel, sim.OpLaunch, sim.OpRecord, 0, errdefs.ErrBusy}, // the event that reports completion
		// Either queue of the staged path may complete late.
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
			one := pathUse{bare: tt.path == stream.PathCopyEngine && tt.work == sim.OpCopy}
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

// TestDefect10AbortThenPageReuse cancels a batch while the first of several steps is stalled on the
// device. No further step may be issued, and the ticket resolves only after the issued step has
// completed.
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
			one := pathUse{bare: tt.path == stream.PathCopyEngine && tt.op == sim.OpCopy}
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

// TestQuarantine checks a batch whose copies stall and whose completion event cannot be recorded.
// The ticket must not resolve, and the stream must report the batch as quarantined, until closing
// the queue shows that it is idle.
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
	for s.Quarantined() < 2 { // the third batch never started, but tickets resolve in order
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
		t.Fatalf("the ticket resolved before its work was known to have ended: %v", tickets[1].Err())
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
