package copy_test

import (
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// TestPace checks that a paced batch uses no more than its share of time: its steps and later
// batches start later.
func TestPace(t *testing.T) {
	const (
		pace, chunks = 40 * time.Millisecond, 4
		late         = 2 * time.Millisecond // a step may start this much early
	)
	dev := openSim(t, sim.Options{})
	host, gpu := pinned(t, dev, 1<<20), deviceMemory(t, dev, 1<<20)
	for _, path := range []stream.Path{stream.PathCopyEngine, stream.PathKernel, stream.PathStaged} {
		t.Run(path.String(), func(t *testing.T) {
			d := &fixedPlanner{choice: plan.Choice{Path: path, Pace: pace, ChunkBytes: 16 << 10}}
			s := open(t, dev, streamcopy.Options{Planner: d, StagingBytes: 256 << 10})
			b := streamtest.Strided(gpu, host, 16*chunks, 1<<10)
			begun := time.Now()
			var tickets []*stream.Ticket
			for range 3 {
				ticket, err := s.Submit(deadline(t), b)
				if err != nil {
					t.Fatal(err)
				}
				tickets = append(tickets, ticket)
			}
			for i, ticket := range tickets {
				if err := ticket.Wait(deadline(t)); err != nil {
					t.Fatal(err)
				}
				c := ticket.Completion()
				if since, least := c.Started.Sub(begun), time.Duration(i)*pace-late; since < least {
					t.Errorf("batch %d started after %v, want %v", i, since, least)
				}
				// Measured from the common start, because a batch that starts late is not delayed
				// further.
				if since, least := c.Finished.Sub(begun), time.Duration(i)*pace+pace*(chunks-1)/chunks-late; since < least {
					t.Errorf("batch %d ended after %v, want %v", i, since, least)
				}
			}
			if len(d.observed) != 0 {
				t.Errorf("reported %v for paced batches", d.observed)
			}
			if err := s.Close(deadline(t)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestCancelPaced checks that Submit does not wait for the pace of earlier batches, that a batch
// that waits for its turn can be canceled, and that Close does not wait for batches that have not
// started.
func TestCancelPaced(t *testing.T) {
	for _, path := range []stream.Path{stream.PathCopyEngine, stream.PathKernel, stream.PathStaged} {
		t.Run(path.String(), func(t *testing.T) { cancelPaced(t, path) })
	}
}

func cancelPaced(t *testing.T, path stream.Path) {
	t.Helper()
	dev := openSim(t, sim.Options{})
	host, gpu := pinned(t, dev, 1<<16), deviceMemory(t, dev, 1<<16)
	s := open(t, dev, streamcopy.Options{Planner: &fixedPlanner{choice: plan.Choice{Path: path, Pace: time.Hour}}})
	complete(t, s, streamtest.Strided(gpu, host, 4, 100))
	var tickets []*stream.Ticket
	for range 2 {
		ticket, err := s.Submit(deadline(t), streamtest.Strided(gpu, host, 4, 100))
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, ticket)
	}
	tickets[0].Cancel()
	wantErr(t, tickets[0].Wait(deadline(t)), errdefs.ErrCanceled)
	if err := s.Close(deadline(t)); err != nil {
		t.Fatal(err)
	}
	wantErr(t, tickets[1].Wait(deadline(t)), errdefs.ErrClosed)
}

// launches is a device that records the number of thread blocks of each launch.
type launches struct {
	device.Device
	ctas *[]int
}

type launchQueue struct {
	device.BatchCopier
	launcher device.KernelLister
	ctas     *[]int
}

func (d launches) OpenQueue(o device.QueueOptions) (device.Queue, error) {
	q, err := d.Device.OpenQueue(o)
	if err != nil {
		return nil, err
	}
	sq, ok := q.(*sim.Queue)
	if !ok {
		return q, nil
	}
	return launchQueue{sq, sq, d.ctas}, nil
}

func (q launchQueue) Launch(k *device.Kernel) error {
	*q.ctas = append(*q.ctas, k.CTAs)
	return q.launcher.Launch(k)
}

func (q launchQueue) HasKernel(name string) bool { return q.launcher.HasKernel(name) }

// TestThreadBlocks checks the number of thread blocks: the planner's value comes before that of the
// options, which comes before the default of the path. No thread block may be without work.
func TestThreadBlocks(t *testing.T) {
	dev := openSim(t, sim.Options{})
	host, gpu := pinned(t, dev, 1<<20), deviceMemory(t, dev, 1<<20)
	many, few := streamtest.Strided(gpu, host, 100, 100), streamtest.Strided(gpu, host, 2, 100)
	tests := []struct {
		path            stream.Path
		planned, option int
		batch           *mem.Batch
		want            int
	}{
		{stream.PathKernel, 5, 7, many, 5},
		{stream.PathKernel, 0, 7, many, 7},
		{stream.PathKernel, 0, 0, many, streamcopy.DefaultCTAs},
		{stream.PathKernel, 0, 0, few, 2},
		{stream.PathStaged, 5, 0, many, 5},
	}
	for _, tt := range tests {
		var ctas []int
		s := open(t, launches{dev, &ctas}, streamcopy.Options{
			Planner: &fixedPlanner{choice: plan.Choice{Path: tt.path, CTAs: tt.planned}}, CTAs: tt.option, StagingBytes: 1 << 20,
		})
		complete(t, s, tt.batch)
		if len(ctas) != 1 || ctas[0] != tt.want {
			t.Errorf("%s: %d planned, %d by option: launched %v", tt.path, tt.planned, tt.option, ctas)
		}
		if err := s.Close(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
}

func wantErr(t *testing.T, err, is error) {
	t.Helper()
	if !errors.Is(err, is) {
		t.Errorf("error %v is not %v", err, is)
	}
}
