package copy_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda/cudatest"
	"github.com/kvlane/kvlane/device/signal"
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

// parkedStreams is the number of waiting streams of the host program, if the device allows as many.
const parkedStreams = 32

// parkedLimit limits the duration of a copy while the streams wait.
var parkedLimit = testkit.Patience()

// program is a host program whose streams wait for a signal and then write marks.
type program struct {
	hosts []device.Queue
	pool  *signal.Pool
	sig   *signal.Signal
	marks *mem.Region
}

// park opens the streams and makes them wait, with work of every kind queued behind the wait.
func park(t *testing.T, dev device.Device, o device.QueueOptions) *program {
	t.Helper()
	a, ok := dev.(device.StreamAdopter)
	if !ok {
		t.Fatalf("%T does not adopt streams", dev)
	}
	n := min(parkedStreams, a.WaitLimit())
	p := &program{marks: streamtest.Pinned(dev).Alloc(t, int64(n))}
	ones, gpu := streamtest.Pinned(dev).Alloc(t, int64(n)), streamtest.DeviceMemory(dev).Alloc(t, int64(n))
	var streams []device.HostStream
	for range n {
		q, err := dev.OpenQueue(o)
		must(t, err)
		t.Cleanup(func() { closing(t, q) })
		h, ok := q.(interface{ Handle() uintptr })
		if !ok {
			t.Fatalf("%T does not provide a handle", q)
		}
		st, err := a.AdoptStream(h.Handle())
		must(t, err)
		p.hosts, streams = append(p.hosts, q), append(streams, st)
	}
	var err error
	p.pool, err = signal.Open(dev, 1)
	must(t, err)
	t.Cleanup(func() { closing(t, p.pool) }) // releases the streams
	p.sig, err = p.pool.Take(t.Context(), 1)
	must(t, err)
	for i, st := range streams {
		must(t, p.sig.Block(st, 1))
		own := func(r *mem.Region) mem.Extent { return mem.Extent{Region: r, Off: int64(i), Len: 1} }
		must(t, p.hosts[i].Copy(own(gpu), own(ones)))
		must(t, p.hosts[i].Fill(own(gpu), 1))
		must(t, p.hosts[i].Copy(own(p.marks), own(gpu)))
	}
	return p
}

type closer interface {
	Close(ctx context.Context) error
}

// closing closes c at the end of the test. c may be closed already.
func closing(t *testing.T, c closer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), parkedLimit)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		t.Error(err)
	}
}

// release checks that the streams waited, sets the signal, and checks that all of them continued.
func (p *program) release(t *testing.T) {
	t.Helper()
	if slices.Contains(p.marks.Bytes(), 1) {
		t.Error("a stream continued before the signal was set")
	}
	p.sig.Set(nil)
	must(t, p.pool.Close(t.Context()))
	for _, q := range p.hosts {
		e, err := q.Record()
		must(t, err)
		must(t, e.Wait(t.Context()))
		e.Close()
	}
	if slices.Contains(p.marks.Bytes(), 0) {
		t.Error("a stream did not go on")
	}
}

// roundRobin is a planner that uses the paths in turn, if they can carry the batch.
type roundRobin struct {
	next stream.Path
	used map[stream.Path]int
}

func (p *roundRobin) Choose(_ plan.Request, can plan.Paths) plan.Choice {
	for ; ; p.next++ {
		if p.next = p.next % (stream.PathNICSoft + 1); can.Has(p.next) {
			p.used[p.next]++
			c := plan.Choice{Path: p.next, Reason: "its turn"}
			p.next++
			return c
		}
	}
}

func (*roundRobin) Observe(plan.Choice, plan.Request, time.Duration) {}

// parkedCopies copies on every path, in both directions, while streams of the host program wait.
// Each path is used for the first time.
func parkedCopies(t *testing.T, dev device.Device, host device.QueueOptions) {
	t.Helper()
	const n, blocks, block = 256 << 10, 16, 4 << 10
	turns := &roundRobin{used: make(map[stream.Path]int)}
	s := open(t, dev, streamcopy.Options{Prepare: true, Planner: turns})
	t.Cleanup(func() { closing(t, s) })
	a, b, gpu := streamtest.Pinned(dev).Alloc(t, n), streamtest.Pinned(dev).Alloc(t, n), streamtest.DeviceMemory(dev).Alloc(t, n)
	p := park(t, dev, host)
	stuck := time.AfterFunc(parkedLimit, func() {
		t.Error("a copy waits for streams of the host program that wait for it")
		p.sig.Set(errdefs.ErrBusy)
	})
	rng := rand.New(rand.NewPCG(3, 3))
	for round := range 64 {
		to, from := mem.Batch{}, mem.Batch{}
		for i, at := range rng.Perm(n / block)[:blocks] {
			host, dev := int64(i)*block, mem.Extent{Region: gpu, Off: int64(at) * block, Len: block}
			to.Src = append(to.Src, mem.Extent{Region: a, Off: host, Len: block})
			from.Dst = append(from.Dst, mem.Extent{Region: b, Off: host, Len: block})
			to.Dst, from.Src = append(to.Dst, dev), append(from.Src, dev)
		}
		for i := range a.Bytes()[:blocks*block] {
			a.Bytes()[i] = byte(i/block + round)
		}
		for _, batch := range []*mem.Batch{&to, &from} {
			ticket, err := s.Submit(t.Context(), batch)
			must(t, err)
			must(t, ticket.Wait(t.Context()))
		}
		if !slices.Equal(a.Bytes()[:blocks*block], b.Bytes()[:blocks*block]) {
			t.Fatalf("round %d: the bytes differ", round)
		}
	}
	if !stuck.Stop() {
		return
	}
	p.release(t)
	must(t, s.Close(t.Context()))
	for _, path := range paths[1:] {
		if turns.used[path] == 0 {
			t.Errorf("no batch used path %s", path)
		}
	}
}

func TestCopiesBesideParkedStreams(t *testing.T) {
	parkedCopies(t, openSim(t, sim.Options{WaitsHoldAllocation: true}), device.QueueOptions{})
}

func TestCopiesBesideParkedStreamsCUDA(t *testing.T) {
	parkedCopies(t, cudatest.Open(t), device.QueueOptions{})
}

// TestCopiesBesideParkedStreamsOfTheirPriorityCUDA uses the same priority for the program's streams
// and kvlane's, so that they share hardware queues.
func TestCopiesBesideParkedStreamsOfTheirPriorityCUDA(t *testing.T) {
	parkedCopies(t, cudatest.Open(t), device.QueueOptions{HighPriority: true})
}

// TestUnpreparedPathWaitsForParkedStreams shows the need for Options.Prepare: without it, the first
// batch waits for the parked streams.
func TestUnpreparedPathWaitsForParkedStreams(t *testing.T) {
	dev := openSim(t, sim.Options{WaitsHoldAllocation: true})
	s := open(t, dev, streamcopy.Options{Planner: &fixedPlanner{choice: plan.Choice{Path: stream.PathStaged}}})
	a, gpu := streamtest.Pinned(dev).Alloc(t, 4096), streamtest.DeviceMemory(dev).Alloc(t, 4096)
	p := park(t, dev, device.QueueOptions{})
	submitted := make(chan error, 1)
	go func() {
		ticket, err := s.Submit(t.Context(), &mem.Batch{Dst: []mem.Extent{mem.All(gpu)}, Src: []mem.Extent{mem.All(a)}})
		if err == nil {
			err = ticket.Wait(t.Context())
		}
		submitted <- err
	}()
	select {
	case err := <-submitted:
		t.Errorf("the path got its memory while streams wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	p.release(t)
	must(t, <-submitted)
	must(t, s.Close(t.Context()))
}

// TestPrepareFailsWhereAPathCannotGetWhatItNeeds fails each allocation and queue of Open once. Open
// must return the error and release everything.
func TestPrepareFailsWhereAPathCannotGetWhatItNeeds(t *testing.T) {
	for _, name := range []string{sim.OpAlloc, sim.OpAllocHost, sim.OpOpen} {
		for n := 0; ; n++ {
			dev := openSim(t, sim.Options{Faults: fault.New(1, fault.Nth(name, n))})
			s, err := streamcopy.Open(dev, streamcopy.Options{Prepare: true})
			if err == nil {
				must(t, s.Close(t.Context()))
				if n == 0 {
					t.Errorf("open does nothing by the name of %s", name)
				}
				break
			}
			if !errors.Is(err, fault.ErrInjected) {
				t.Errorf("%s %d failed, and open returns %v", name, n, err)
			}
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
