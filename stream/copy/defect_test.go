package copy_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
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

// TestDefectBrokenStreamFreesItsMemory breaks a stream by a device failure while
// goroutines submit batches on every path, and closes it. Close of the device fails if the stream
// has not freed its memory and queues.
func TestDefectBrokenStreamFreesItsMemory(t *testing.T) {
	works := []string{sim.OpBatch, sim.OpCallBatch, sim.OpLaunch, sim.OpCallLaunch, sim.OpRecord, sim.OpAlloc, sim.OpOpen}
	for seed := range uint64(24) {
		// Early rounds fail the first operations, when most paths have no memory and queues yet.
		work, n := works[int(seed)%len(works)], int(seed)/len(works)*5
		if work == sim.OpAlloc || work == sim.OpOpen { // the stream makes few of these calls
			n = 0
		}
		t.Run(fmt.Sprintf("%d %s", seed, work), func(t *testing.T) {
			faults := fault.New(seed)
			dev := openSim(t, sim.Options{Faults: faults})
			host, gpu := pinned(t, dev, 1<<20), deviceMemory(t, dev, 1<<20)
			s := open(t, dev, streamcopy.Options{Planner: newDice(seed), Descriptors: 1024, StagingBytes: 64 << 10})
			faults.Add(fault.After(work, int(faults.Seen(work))+n).Fail(errdefs.ErrBusy))
			closed := make(chan struct{})
			var submitters sync.WaitGroup
			for i := range 8 {
				batch := streamtest.Strided(gpu, host, 20, 100)
				if i%2 == 1 {
					batch = streamtest.Strided(host, gpu, 20, 100)
				}
				ctx := deadline(t)
				submitters.Go(func() {
					for late := 0; late < 20; {
						select {
						case <-closed:
							late++
						default:
						}
						if ticket, err := s.Submit(ctx, batch); err == nil {
							_ = ticket.Wait(ctx) // the next Submit returns the error
						}
					}
				})
			}
			if err := faults.Await(deadline(t), 1); err != nil {
				t.Error(err)
			}
			err := s.Close(deadline(t))
			if err != nil {
				err = s.Close(deadline(t)) // the first Close may return the failure that broke the stream
			}
			close(closed)
			submitters.Wait()
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestDefectSubmitToAStreamThatIsDownPreparesNothing checks that a closed or broken stream opens no
// queues and allocates no memory, because it would never release them.
func TestDefectSubmitToAStreamThatIsDownPreparesNothing(t *testing.T) {
	for _, broken := range []bool{false, true} {
		for _, path := range []stream.Path{stream.PathStaged} {
			t.Run(fmt.Sprintf("%s broken=%t", path, broken), func(t *testing.T) {
				faults := fault.New(1)
				dev := openSim(t, sim.Options{Faults: faults})
				host, gpu := pinned(t, dev, 4096), deviceMemory(t, dev, 4096)
				d := &fixedPlanner{choice: plan.Choice{Path: stream.PathCopyEngine}}
				s := open(t, dev, streamcopy.Options{Planner: d, StagingBytes: 1 << 16})
				want := errdefs.ErrClosed
				if broken {
					want = errdefs.ErrBroken
					faults.Add(fault.Nth(sim.OpBatch, 0).Fail(errdefs.ErrBusy))
					ticket, err := s.Submit(deadline(t), streamtest.Strided(gpu, host, 4, 100))
					if err != nil {
						t.Fatal(err)
					}
					if err := ticket.Wait(deadline(t)); !errors.Is(err, errdefs.ErrBusy) {
						t.Fatalf("ticket: %v", err)
					}
				} else if err := s.Close(deadline(t)); err != nil {
					t.Fatal(err)
				}
				d.mu.Lock()
				d.choice.Path = path
				d.mu.Unlock()
				queues, regions := faults.Seen(sim.OpOpen), faults.Seen(sim.OpAlloc)+faults.Seen(sim.OpAllocHost)
				if _, err := s.Submit(deadline(t), streamtest.Strided(gpu, host, 4, 100)); !errors.Is(err, want) {
					t.Errorf("submit: %v, want %v", err, want)
				}
				if q, r := faults.Seen(sim.OpOpen)-queues, faults.Seen(sim.OpAlloc)+faults.Seen(sim.OpAllocHost)-regions; q+r != 0 {
					t.Errorf("%d queues were opened and %d regions allocated for a batch that was refused", q, r)
				}
				if err := s.Close(deadline(t)); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestDefectSumsAskedOfAClosedStream checks that a closed stream refuses a batch with checksums.
func TestDefectSumsAskedOfAClosedStream(t *testing.T) {
	dev := openSim(t, sim.Options{})
	host, gpu := pinned(t, dev, 1<<20), deviceMemory(t, dev, 1<<20)
	s := open(t, dev, streamcopy.Options{})
	if err := s.Close(deadline(t)); err != nil {
		t.Fatal(err)
	}
	b := benchPaged(host, gpu, 1, 4, mem.LeafBytes)
	b.Paged.Sums = make([]uint64, 4)
	if _, err := s.Submit(deadline(t), b); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("submit: %v", err)
	}
}

// slowDevice is a device whose Alloc waits until the test allows it.
type slowDevice struct {
	*sim.Device
	asked, let chan struct{}
}

func (d slowDevice) Alloc(n int64, o device.AllocOptions) (*mem.Region, error) {
	d.asked <- struct{}{}
	<-d.let
	return d.Device.Alloc(n, o)
}

// TestDefectSubmitHonoursItsContextWhilePreparing checks a driver that takes long to allocate
// staging memory. The Submit that needs it, later Submits and Close return when their contexts end.
// A later Close frees memory that arrived late.
func TestDefectSubmitHonoursItsContextWhilePreparing(t *testing.T) {
	dev := slowDevice{openSim(t, sim.Options{}), make(chan struct{}, 1), make(chan struct{})}
	host, gpu := pinned(t, dev.Device, 4096), deviceMemory(t, dev.Device, 4096)
	d := &fixedPlanner{choice: plan.Choice{Path: stream.PathStaged}}
	s := open(t, dev, streamcopy.Options{Planner: d, StagingBytes: 1 << 16})
	brief := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	calls := []struct {
		name string
		call func(context.Context) error
	}{
		{"first submit", func(ctx context.Context) error {
			_, err := s.Submit(ctx, streamtest.Strided(gpu, host, 4, 100))
			return err
		}},
		{"second submit", func(ctx context.Context) error {
			_, err := s.Submit(ctx, streamtest.Strided(gpu, host, 4, 100))
			return err
		}},
		{"close", s.Close},
	}
	for _, c := range calls {
		result := make(chan error, 1)
		go func() { result <- c.call(brief()) }()
		select {
		case err := <-result:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", c.name, err)
			}
		case <-time.After(testkit.Patience()):
			t.Errorf("%s did not end with its context", c.name)
		}
	}
	<-dev.asked
	close(dev.let)
	if err := s.Close(deadline(t)); err != nil {
		t.Error(err)
	}
}

// TestDefectTransientLackOfMemoryTakesAPathAwayForAWhileOnly checks the staged path when another
// allocation temporarily fills the device. The batch takes another path and reports that. When
// there is memory again, later batches are staged.
func TestDefectTransientLackOfMemoryTakesAPathAwayForAWhileOnly(t *testing.T) {
	const staging = 1 << 20
	dev := openSim(t, sim.Options{MemoryBytes: 2 * staging})
	host, gpu := pinned(t, dev, 4096), deviceMemory(t, dev, 4096)
	other, err := dev.Alloc(3*staging/2, device.AllocOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d := &fixedPlanner{choice: plan.Choice{Path: stream.PathStaged, Reason: "because"}}
	s := open(t, dev, streamcopy.Options{Planner: d, StagingBytes: staging})
	c := complete(t, s, streamtest.Strided(gpu, host, 4, 100))
	if c.Path != stream.PathCopyEngine || !errors.Is(c.GivenUp, errdefs.ErrNoMemory) {
		t.Errorf("without memory: by %s, given up: %v", c.Path, c.GivenUp)
	}
	if err := dev.Free(other); err != nil {
		t.Fatal(err)
	}
	for begun := time.Now(); c.Path != stream.PathStaged; time.Sleep(10 * time.Millisecond) {
		if time.Since(begun) > testkit.Patience() {
			t.Fatal("no batch was staged after memory became available")
		}
		c = complete(t, s, streamtest.Strided(gpu, host, 4, 100))
		if c.GivenUp != nil {
			t.Errorf("with memory: given up: %v", c.GivenUp)
		}
	}
	if err := s.Close(deadline(t)); err != nil {
		t.Error(err)
	}
}

// TestDefectCloseFreesTheRestWhereOnePartFails checks that Close frees all other memory if the
// driver fails to free one region.
func TestDefectCloseFreesTheRestWhereOnePartFails(t *testing.T) {
	faults := fault.New(1)
	dev := openSim(t, sim.Options{Faults: faults})
	s := open(t, dev, streamcopy.Options{Path: stream.PathStaged, StagingBytes: 1 << 16})
	faults.Add(fault.Nth(sim.OpFree, int(faults.Seen(sim.OpFree))).Fail(errdefs.ErrBusy))
	before := faults.Seen(sim.OpFree)
	if err := s.Close(deadline(t)); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close: %v", err)
	}
	if n := faults.Seen(sim.OpFree) - before; n != 2 {
		t.Errorf("%d regions were given back, want both", n)
	}
	if err := s.Close(deadline(t)); err != nil {
		t.Errorf("close again: %v", err)
	}
}
