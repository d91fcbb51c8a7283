package copy_test

import (
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// limitedDevice is a device whose queues support fewer operations than those of a simulated one.
type limitedDevice struct {
	device.Device
	hide func(device.Queue) device.Queue
}

func (d limitedDevice) OpenQueue(o device.QueueOptions) (device.Queue, error) {
	q, err := d.Device.OpenQueue(o)
	if err != nil {
		return nil, err
	}
	return d.hide(q), nil
}

func bare(q device.Queue) device.Queue  { return struct{ device.Queue }{q} }
func whole(q device.Queue) device.Queue { return q }

func batching(q device.Queue) device.Queue {
	b, ok := q.(device.BatchCopier)
	if !ok {
		return q
	}
	return struct{ device.BatchCopier }{b}
}

func TestOpenRefuses(t *testing.T) {
	dev := openSim(t, sim.Options{})
	tests := []struct {
		name  string
		hide  func(device.Queue) device.Queue
		o     streamcopy.Options
		is    error
		words []string
	}{
		{"kernel without launcher", bare, streamcopy.Options{Path: stream.PathKernel}, errdefs.ErrNotSupported, []string{"kernel", "sim 0"}},
		{"path of files", whole, streamcopy.Options{Path: stream.PathPosix}, errdefs.ErrNotSupported, []string{"posix"}},
		{"unknown path", whole, streamcopy.Options{Path: 77}, errdefs.ErrNotSupported, []string{"path(77)"}},
		{"all fields", whole, streamcopy.Options{QueueDepth: -1, Descriptors: 3, CTAs: -2, StagingBytes: 7}, errdefs.ErrInvalid, []string{"depth -1", "3 descriptors", "CTAs -2", "7 bytes"}},
		{
			"absurd numbers", whole,
			streamcopy.Options{QueueDepth: math.MaxInt64, Descriptors: math.MaxInt64, CTAs: math.MaxInt64, StagingBytes: math.MaxInt64},
			errdefs.ErrInvalid,
			[]string{"depth 9223372036854775807 is not 0 to 1048576", "not 4096 to 1099511627776", "CTAs 9"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := streamcopy.Open(limitedDevice{dev, tt.hide}, tt.o)
			if s != nil || !errors.Is(err, tt.is) {
				t.Fatalf("stream %v, error %v", s != nil, err)
			}
			for _, word := range tt.words {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("error %q does not contain %q", err, word)
				}
			}
		})
	}
}

// fixedPlanner is a planner with a fixed choice. It records requests and reported durations.
type fixedPlanner struct {
	choice plan.Choice

	mu       sync.Mutex
	asked    []plan.Request
	can      []plan.Paths
	observed []time.Duration
}

func (d *fixedPlanner) Choose(r plan.Request, can plan.Paths) plan.Choice {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked, d.can = append(d.asked, r), append(d.can, can)
	c := d.choice
	for _, other := range []stream.Path{stream.PathCopyEngine, stream.PathKernel} {
		if !can.Has(c.Path) {
			c.Path = other
		}
	}
	return c
}

func (d *fixedPlanner) Observe(_ plan.Choice, _ plan.Request, actual time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.observed = append(d.observed, actual)
}

// pagesInOrder returns a batch of two runs of four adjacent pages.
func pagesInOrder(host, gpu *mem.Region) *mem.Batch {
	b := benchPaged(host, gpu, 1, 8, 1<<10)
	for i := range b.Paged.Groups[0].Pairs {
		at := uint32(i + i/4)
		b.Paged.Groups[0].Pairs[i] = mem.PageSlot{Page: at, Slot: at}
	}
	return b
}

// TestPlannerIsAsked checks that the planner gets the properties of a batch and the possible paths,
// that its choice is used, and that it gets the measured duration.
func TestPlannerIsAsked(t *testing.T) {
	dev := openSim(t, sim.Options{})
	host, gpu := pinned(t, dev, 1<<20), deviceMemory(t, dev, 1<<20)
	neighbours := &mem.Batch{}
	for i := range int64(100) {
		neighbours.Dst = append(neighbours.Dst, mem.Extent{Region: gpu, Off: i * 20, Len: 10})
		neighbours.Src = append(neighbours.Src, mem.Extent{Region: host, Off: i * 10, Len: 10})
	}
	awaited := streamtest.Strided(gpu, host, 4, 100)
	awaited.Awaited = true
	all := plan.PathSet(stream.PathCopyEngine, stream.PathKernel, stream.PathStaged)
	within := all.Without(stream.PathStaged)
	tests := []struct {
		name  string
		hide  func(device.Queue) device.Queue
		batch *mem.Batch
		want  plan.Request
		can   plan.Paths
	}{
		{"to device", whole, streamtest.Strided(gpu, host, 4, 100), plan.Request{Dir: plan.H2D, Pieces: 4, Runs: 4, HostRuns: 4, Bytes: 400}, all},
		{"to host", whole, streamtest.Strided(host, gpu, 4, 100), plan.Request{Dir: plan.D2H, Pieces: 4, Runs: 4, HostRuns: 4, Bytes: 400}, all},
		{"within", whole, streamtest.Strided(host, host, 4, 100), plan.Request{Dir: plan.D2D, Pieces: 4, Runs: 4, Bytes: 400}, within},
		{"host contiguous", whole, neighbours, plan.Request{Dir: plan.H2D, Pieces: 100, Runs: 100, HostRuns: 1, Bytes: 1000}, all},
		{"paged", whole, benchPaged(host, gpu, 2, 2, 1<<10), plan.Request{Dir: plan.D2H, Pieces: 4, Runs: 4, HostRuns: 1, HostRows: 1, Bytes: 4096}, all},
		{"pages in order", whole, pagesInOrder(host, gpu), plan.Request{Dir: plan.D2H, Pieces: 8, Runs: 2, HostRuns: 2, HostRows: 2, Bytes: 8 << 10}, all},
		{"awaited", whole, awaited, plan.Request{Dir: plan.H2D, Pieces: 4, Runs: 4, HostRuns: 4, Bytes: 400, Awaited: true}, all},
		{"no kernels", batching, streamtest.Strided(gpu, host, 4, 100), plan.Request{Dir: plan.H2D, Pieces: 4, Runs: 4, HostRuns: 4, Bytes: 400}, plan.PathSet(stream.PathCopyEngine)},
		{"bare", bare, streamtest.Strided(gpu, host, 4, 100), plan.Request{Dir: plan.H2D, Pieces: 4, Runs: 4, HostRuns: 4, Bytes: 400}, plan.PathSet(stream.PathCopyEngine)},
	}
	for _, tt := range tests {
		for _, path := range []stream.Path{stream.PathCopyEngine, stream.PathKernel, stream.PathStaged} {
			if !tt.can.Has(path) {
				continue
			}
			t.Run(tt.name+" by "+path.String(), func(t *testing.T) {
				d := &fixedPlanner{choice: plan.Choice{Path: path, Predicted: time.Second, Reason: "because"}}
				s := open(t, limitedDevice{dev, tt.hide}, streamcopy.Options{Planner: d, StagingBytes: 1 << 16})
				c := complete(t, s, tt.batch)
				if c.Path != path || c.Reason != "because" || c.Predicted != time.Second {
					t.Errorf("completion %+v", c)
				}
				if err := s.Close(deadline(t)); err != nil {
					t.Fatal(err)
				}
				want := tt.want
				if diff := cmp.Diff([]plan.Request{want}, d.asked); diff != "" {
					t.Errorf("requests (-want +got):\n%s", diff)
				}
				if d.can[0]&all != tt.can {
					t.Errorf("paths %b, want %b", d.can[0], tt.can)
				}
				elapsed := c.Finished.Sub(c.Started)
				if late := len(d.observed) == 0 && elapsed > 40*time.Microsecond; !late && (len(d.observed) != 1 || d.observed[0] != elapsed) { // late: the stream did not check in time, so the duration is not reported
					t.Errorf("reported %v of %v", d.observed, elapsed)
				}
			})
		}
	}
}

// TestOutcomesOfOthersAreNotLearned checks that the planner gets no duration for a batch that
// failed, was canceled, waited for an event or copied nothing.
func TestOutcomesOfOthersAreNotLearned(t *testing.T) {
	plan1 := fault.New(1)
	dev := openSim(t, sim.Options{Faults: plan1})
	host, gpu := pinned(t, dev, 4096), deviceMemory(t, dev, 4096)
	d := &fixedPlanner{choice: plan.Choice{Path: stream.PathKernel}}
	s := open(t, dev, streamcopy.Options{Planner: d})
	complete(t, s, &mem.Batch{})
	e, err := s.Record(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := s.WaitEvent(deadline(t), e); err != nil {
		t.Fatal(err)
	}
	complete(t, s, streamtest.Strided(gpu, host, 4, 100))
	if len(d.observed) != 0 {
		t.Errorf("reported %v", d.observed)
	}
	for end := time.Now().Add(patience); len(d.observed) == 0 && time.Now().Before(end); { // the stream may miss the end of a single batch
		complete(t, s, streamtest.Strided(gpu, host, 4, 100))
	}
	if len(d.observed) != 1 {
		t.Errorf("reported %v for a measurable batch", d.observed)
	}
	plan1.Add(fault.Nth(sim.OpLaunch, int(plan1.Seen(sim.OpLaunch))).Fail(errdefs.ErrBusy))
	ticket, err := s.Submit(deadline(t), streamtest.Strided(gpu, host, 4, 100))
	if err != nil {
		t.Fatal(err)
	}
	if err := ticket.Wait(deadline(t)); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("ticket: %v", err)
	}
	if err := s.Close(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if len(d.observed) != 1 {
		t.Errorf("reported %v for a failed batch", d.observed)
	}
}

// The end of a small batch without a waiter was noticed late. The planner then got a duration that
// included the delay.
func TestDefectUnseenOutcomeIsLearned(t *testing.T) {
	dev := openSim(t, sim.Options{})
	host, gpu := pinned(t, dev, 4096), deviceMemory(t, dev, 4096)
	d := &fixedPlanner{choice: plan.Choice{Path: stream.PathKernel}}
	s := open(t, dev, streamcopy.Options{Planner: d})
	defer closeStream(t, s)
	ticket, err := s.Submit(deadline(t), streamtest.Strided(gpu, host, 4, 100))
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	if err := ticket.Wait(deadline(t)); err != nil || len(d.observed) != 0 {
		t.Errorf("error %v, reported %v", err, d.observed)
	}
}

// TestUnpreparedPath checks a path that cannot allocate its memory. The stream gives the path up,
// reports that once with the cause, and uses another path at once.
func TestUnpreparedPath(t *testing.T) {
	dev := openSim(t, sim.Options{MemoryBytes: 1 << 20})
	host, gpu := pinned(t, dev, 4096), deviceMemory(t, dev, 4096)
	d := &fixedPlanner{choice: plan.Choice{Path: stream.PathStaged, Reason: "because"}}
	s := open(t, dev, streamcopy.Options{Planner: d, StagingBytes: 1 << 30})
	for i, reason := range []string{streamcopy.ReasonUnprepared, "because"} {
		c := complete(t, s, streamtest.Strided(gpu, host, 4, 100))
		if c.Path != stream.PathCopyEngine || c.Reason != reason {
			t.Errorf("path %s (%s)", c.Path, c.Reason)
		}
		if reported := errors.Is(c.GivenUp, errdefs.ErrNoMemory); reported != (i == 0) {
			t.Errorf("batch %d reports that a path was given up: %v", i, c.GivenUp)
		}
	}
	if err := s.Close(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if s, err := streamcopy.Open(dev, streamcopy.Options{Path: stream.PathStaged, StagingBytes: 1 << 30}); s != nil || !errors.Is(err, errdefs.ErrNoMemory) {
		t.Errorf("a forced path without memory: %v", err)
	}
}

// TestForcedPathUnfit checks that a batch that the forced path cannot carry takes another path and
// reports the reason.
func TestForcedPathUnfit(t *testing.T) {
	dev := openSim(t, sim.Options{})
	host := pinned(t, dev, 4096)
	s := open(t, dev, streamcopy.Options{Path: stream.PathStaged, StagingBytes: 1 << 16})
	if c := complete(t, s, streamtest.Strided(host, host, 4, 100)); c.Path != stream.PathCopyEngine || c.Reason != streamcopy.ReasonUnfit {
		t.Errorf("path %s (%s)", c.Path, c.Reason)
	}
	if err := s.Close(deadline(t)); err != nil {
		t.Fatal(err)
	}
}

// complete submits b, waits until it succeeds and returns its completion.
func complete(t *testing.T, s *streamcopy.Stream, b *mem.Batch) stream.Completion {
	t.Helper()
	ticket, err := s.Submit(deadline(t), b)
	if err != nil {
		t.Fatal(err)
	}
	if err := ticket.Wait(deadline(t)); err != nil {
		t.Fatal(err)
	}
	return ticket.Completion()
}

func deviceMemory(tb testing.TB, dev *sim.Device, n int64) *mem.Region {
	tb.Helper()
	return streamtest.DeviceMemory(dev).Alloc(tb, n)
}

// TestForeignDevice checks that a stream refuses memory of another device, whose address is invalid
// here.
func TestForeignDevice(t *testing.T) {
	dev, other := openSim(t, sim.Options{}), openSim(t, sim.Options{Index: 1})
	r, err := other.Alloc(100, device.AllocOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, dev, streamcopy.Options{})
	if _, err := s.Submit(t.Context(), &mem.Batch{Dst: []mem.Extent{mem.All(r)}, Src: []mem.Extent{mem.All(r)}}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("submit: %v", err)
	}
	if err := errors.Join(s.Close(deadline(t)), other.Free(r)); err != nil {
		t.Error(err)
	}
}

// TestAllocations checks that the number of allocations of a batch does not depend on the number of
// its copies.
func TestAllocations(t *testing.T) {
	dev := openSim(t, sim.Options{})
	dst, src := pinned(t, dev, 32<<20), pinned(t, dev, 32<<20)
	for _, path := range []stream.Path{stream.PathCopyEngine, stream.PathKernel} {
		s := open(t, nullDevice{dev, nullEvent{}}, streamcopy.Options{Path: path})
		for _, b := range []*mem.Batch{streamtest.Strided(dst, src, 1, 8), streamtest.Strided(dst, src, 10_000, 8), benchPaged(dst, src, 64, 256, 1<<10)} {
			n := testing.AllocsPerRun(20, func() {
				ticket, err := s.Submit(t.Context(), b)
				if err != nil {
					t.Fatal(err)
				}
				<-ticket.Done()
			})
			if n > 6 {
				t.Errorf("%s: %v allocations for %d copies", path, n, b.Pieces())
			}
		}
		if err := s.Close(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
}
