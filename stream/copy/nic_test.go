package copy_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device/cuda/cudatest"
	"github.com/kvlane/kvlane/internal/testkit"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/stream/nic"
	"github.com/kvlane/kvlane/stream/streamtest"
)

func TestConformanceNIC(t *testing.T) {
	for name, o := range map[string]soft.Options{
		"one": {},
		"two": {Devices: make([]soft.DeviceOptions, 2)},
	} {
		t.Run(name, func(t *testing.T) {
			if len(o.Devices) < 2 {
				testkit.SkipRace(t, "two NICs run the same goroutines and more")
			}
			streamtest.Run(t, func(t *testing.T) streamtest.Env {
				t.Helper()
				plan := fault.New(1)
				g := newNICRig(t, openSim(t, sim.Options{Faults: plan}), o)
				return g.env(t, plan, sim.OpWork, streamcopy.Options{Path: stream.PathNICSoft, NIC: g.carrier(nic.Options{})})
			})
		})
	}
}

// TestConformanceInterleavedNIC selects a random path for each batch, including a NIC. The device's
// queues and the NIC execute their work in a seeded order, so that only the stream keeps batches in
// order.
func TestConformanceInterleavedNIC(t *testing.T) {
	const seed = 0 // with this seed the longest batches avoid the NIC, whose seeded order would make them slow
	streamtest.Run(t, func(t *testing.T) streamtest.Env {
		t.Helper()
		plan := fault.New(1)
		dev := openSim(t, sim.Options{Interleave: &sim.Interleave{Seed: seed}, Faults: plan})
		g := newNICRig(t, dev, soft.Options{Schedule: &soft.Schedule{Seed: seed}})
		return g.env(t, plan, sim.OpWork, streamcopy.Options{
			Planner: newDice(seed), Descriptors: 1024, StagingBytes: 64 << 10, NIC: g.carrier(nic.Options{}),
		})
	})
}

// TestConformanceNICCUDA copies bytes of a GPU with a software NIC, alone and alternating with the
// GPU's own paths.
func TestConformanceNICCUDA(t *testing.T) {
	dev := cudatest.Open(t)
	for name, o := range map[string]streamcopy.Options{
		"forced":        {Path: stream.PathNICSoft},
		"any path next": {Planner: newDice(1), StagingBytes: 64 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			streamtest.Run(t, func(t *testing.T) streamtest.Env {
				t.Helper()
				g := newNICRig(t, dev, soft.Options{})
				o := o
				o.NIC = g.carrier(nic.Options{SendDepth: 4096})
				return g.env(t, nil, "", o)
			})
		})
	}
}

// chooser is a planner that sends batches of at least least bytes over a NIC, if possible, and
// others on the other path.
type chooser struct {
	least int64
	other stream.Path
	asked []plan.Paths
	alone []plan.Paths // values of plan.Request.Alone
}

func (c *chooser) Choose(r plan.Request, can plan.Paths) plan.Choice {
	c.asked, c.alone = append(c.asked, can), append(c.alone, r.Alone)
	if r.Bytes >= c.least && can.Has(stream.PathNICSoft) {
		return plan.Choice{Path: stream.PathNICSoft, Predicted: time.Second, Reason: "by NIC"}
	}
	return plan.Choice{Path: c.other, Predicted: time.Second, Reason: "otherwise"}
}

func (*chooser) Observe(plan.Choice, plan.Request, time.Duration) {}

// TestNICTakesTurns dumps and loads the same memory on a NIC and on another path alternately, and
// submits all batches at once. Each batch must see the bytes of the previous one, which the last
// batch shows.
func TestNICTakesTurns(t *testing.T) {
	const size, rounds = 64 << 10, 12
	for _, other := range []stream.Path{stream.PathKernel, stream.PathCopyEngine, stream.PathStaged} {
		t.Run(other.String(), func(t *testing.T) {
			for seed := range uint64(4) {
				dev := openSim(t, sim.Options{Interleave: &sim.Interleave{Seed: seed}})
				g := newNICRig(t, dev, soft.Options{Schedule: &soft.Schedule{Seed: seed}})
				s := open(t, dev, streamcopy.Options{Planner: &chooser{least: size, other: other}, NIC: g.carrier(nic.Options{}), StagingBytes: 64 << 10})
				host, gpu := g.pinned(t, (rounds+1)*size), g.device(t, size)
				want := host.Bytes()[:size]
				for i := range want {
					want[i] = byte(i*7 + i>>8)
				}
				var tickets []*stream.Ticket
				seen := make(map[stream.Path]int)
				for i := range int64(rounds) {
					n := size - i%2*64 // the smaller batches use the other path
					load := &mem.Batch{Dst: []mem.Extent{{Region: gpu, Len: n}}, Src: []mem.Extent{{Region: host, Off: i * size, Len: n}}}
					n = size - i/2%2*64
					dump := &mem.Batch{Dst: []mem.Extent{{Region: host, Off: (i + 1) * size, Len: n}}, Src: []mem.Extent{{Region: gpu, Len: n}}}
					tickets = append(tickets, submitOK(t, s, load), submitOK(t, s, dump))
				}
				for i, k := range tickets {
					if err := k.Wait(deadline(t)); err != nil {
						t.Fatalf("batch %d: %v", i, err)
					}
					seen[k.Completion().Path]++
				}
				if got := host.Bytes()[rounds*size:]; !bytes.Equal(got[:size-64], want[:size-64]) {
					t.Errorf("seed %d: the last dump differs from the bytes of the first load", seed)
				}
				if seen[stream.PathNICSoft] == 0 || seen[other] == 0 {
					t.Errorf("paths taken: %v", seen)
				}
				if err := s.Close(deadline(t)); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestNICIsOfferedWhatItReaches checks that the planner may use the NIC only for batches between
// registered host and device memory. A forced NIC path also copies within one of them, and uses
// another path for unregistered memory.
func TestNICIsOfferedWhatItReaches(t *testing.T) {
	dev := openSim(t, sim.Options{})
	g := newNICRig(t, dev, soft.Options{})
	host, gpu, foreign := g.pinned(t, 1<<16), g.device(t, 1<<16), pinned(t, dev, 1<<16)
	spare := pinned(t, dev, 1<<16) // a part of it is registered
	g.register(t, partOf(t, spare, 1<<15))
	mixed := streamtest.Strided(gpu, host, 2, 100)
	mixed.Src[1].Region = foreign
	empty := streamtest.Strided(gpu, host, 2, 100)
	empty.Dst = append(empty.Dst, mem.Extent{Region: gpu})
	empty.Src = append(empty.Src, mem.Extent{Region: foreign})
	for name, tt := range map[string]struct {
		batch           *mem.Batch
		offered, forced bool
	}{
		"to device":            {streamtest.Strided(gpu, host, 4, 100), true, true},
		"to host":              {streamtest.Strided(host, gpu, 4, 100), true, true},
		"within":               {streamtest.Strided(host, host, 4, 100), false, true},
		"paged":                {benchPaged(host, gpu, 2, 2, 1<<10), true, true},
		"from elsewhere":       {streamtest.Strided(gpu, foreign, 4, 100), false, false},
		"to elsewhere":         {streamtest.Strided(foreign, gpu, 4, 100), false, false},
		"partly elsewhere":     {mixed, false, false},
		"nothing of elsewhere": {empty, true, true},
		"part of the region":   {streamtest.Strided(gpu, spare, 1, 100), false, false},
		"paged elsewhere":      {benchPaged(foreign, gpu, 2, 2, 1<<10), false, false},
		"paged from elsewhere": {benchPaged(host, foreign, 2, 2, 1<<10), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := &chooser{other: stream.PathCopyEngine}
			s := open(t, dev, streamcopy.Options{Planner: c, NIC: g.carrier(nic.Options{})})
			complete(t, s, tt.batch)
			if offered := c.asked[0].Has(stream.PathNICSoft); offered != tt.offered {
				t.Errorf("the NIC was offered to the planner: %t", offered)
			}
			forced := open(t, dev, streamcopy.Options{Path: stream.PathNICSoft, NIC: g.carrier(nic.Options{})})
			if done := complete(t, forced, tt.batch); (done.Path == stream.PathNICSoft) != tt.forced || !tt.forced && done.Reason != streamcopy.ReasonUnfit {
				t.Errorf("forced: path %s (%s)", done.Path, done.Reason)
			}
			if err := errors.Join(s.Close(deadline(t)), forced.Close(deadline(t))); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPlannerReceivesPathsThatStartAlone checks plan.Request.Alone: after a batch on a NIC it
// contains all other paths, and after a batch on another path it contains the NIC.
func TestPlannerReceivesPathsThatStartAlone(t *testing.T) {
	dev := openSim(t, sim.Options{})
	g := newNICRig(t, dev, soft.Options{})
	host, gpu := g.pinned(t, 1<<16), g.device(t, 1<<16)
	c := &chooser{least: 400, other: stream.PathKernel}
	s := open(t, dev, streamcopy.Options{Planner: c, NIC: g.carrier(nic.Options{})})
	gate := make(gated)
	var tickets []*stream.Ticket
	for _, n := range []int{4, 1, 4} {
		b := streamtest.Strided(gpu, host, n, 100)
		b.After = []mem.Dependency{gate}
		tickets = append(tickets, submitOK(t, s, b))
	}
	close(gate)
	for _, k := range tickets {
		if err := k.Wait(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
	want := []plan.Paths{0, c.asked[1].Without(stream.PathNICSoft), plan.PathSet(stream.PathNICSoft)}
	if !slices.Equal(c.alone, want) {
		t.Errorf("alone: %b, want %b", c.alone, want)
	}
	if err := s.Close(deadline(t)); err != nil {
		t.Error(err)
	}
}

// partOf returns the first n bytes of r as a separate region.
func partOf(t *testing.T, r *mem.Region, n int64) *mem.Region {
	t.Helper()
	p, err := mem.NewRegion(mem.RegionSpec{Kind: r.Kind(), Len: n, CPU: r.CPU(), Dev: r.Dev(), Device: r.Device(), Bytes: r.Bytes()[:n]})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestNICOptions checks that Open refuses an incomplete Carrier and a path without one.
func TestNICOptions(t *testing.T) {
	dev := openSim(t, sim.Options{})
	_, err := streamcopy.Open(dev, streamcopy.Options{NIC: &streamcopy.Carrier{Path: stream.PathKernel}})
	if !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "path kernel") || !strings.Contains(err.Error(), "Open and Reaches must be set") {
		t.Errorf("open: %v", err)
	}
	for _, p := range []stream.Path{stream.PathNIC, stream.PathNICSoft} {
		if _, err := streamcopy.Open(dev, streamcopy.Options{Path: p}); !errors.Is(err, errdefs.ErrNotSupported) {
			t.Errorf("open %s without a NIC: %v", p, err)
		}
	}
}

// TestNICCancelProvesQuiescence cancels a batch of many requests after each possible number of NIC
// steps, with another batch behind it. When the ticket resolves, it overwrites the destination.
// Later steps of the NIC must not change it.
func TestNICCancelProvesQuiescence(t *testing.T) {
	const seeds, copies, size = 24, 1500, 16
	canceled := 0
	for seed := range uint64(seeds) {
		dev := openSim(t, sim.Options{})
		g := newNICRig(t, dev, soft.Options{Mover: soft.CPUMover{}, Schedule: &soft.Schedule{Seed: seed, Manual: true}})
		s := open(t, dev, streamcopy.Options{Path: stream.PathNICSoft, NIC: g.carrier(nic.Options{SendDepth: 16})})
		dst, src, other := g.pinned(t, copies*(size+1)), g.pinned(t, copies*(size+1)), g.pinned(t, copies*(size+1))
		ticket := submitOK(t, s, streamtest.Strided(dst, src, copies, size))
		behind := submitOK(t, s, streamtest.Strided(other, src, copies, size))
		for range rand.New(rand.NewPCG(seed, 10)).IntN(100) {
			g.prov.Step()
		}
		ticket.Cancel()
		switch err := g.stepUntil(func() error { return ticket.Wait(deadline(t)) }); {
		case errors.Is(err, errdefs.ErrCanceled):
			canceled++
			if c := ticket.Completion(); c.Path != stream.PathNICSoft || c.Bytes != 0 {
				t.Errorf("seed %d: completion %+v", seed, c)
			}
		case err != nil:
			t.Fatal(err)
		}
		sentinel := bytes.Repeat([]byte{0xa5}, int(dst.Len()))
		copy(dst.Bytes(), sentinel)
		if err := g.stepUntil(func() error { return behind.Wait(deadline(t)) }); err != nil {
			t.Errorf("seed %d: the batch behind it: %v", seed, err)
		}
		for g.prov.Step() {
		}
		if !bytes.Equal(dst.Bytes(), sentinel) {
			t.Errorf("seed %d: memory was written after its ticket had resolved", seed)
		}
		if err := g.stepUntil(func() error { return s.Close(deadline(t)) }); err != nil {
			t.Error(err)
		}
	}
	if canceled < seeds/2 {
		t.Errorf("%d tickets were cancelled before their end", canceled)
	}
}

// stepUntil steps the NIC until f returns.
func (g *nicRig) stepUntil(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	for {
		select {
		case err := <-done:
			return err
		default:
			if !g.prov.Step() {
				time.Sleep(10 * time.Microsecond)
			}
		}
	}
}

// TestApartWaitsForEvents checks that work that does not run in the stream's queue still waits for
// the events that the stream waits for.
func TestApartWaitsForEvents(t *testing.T) {
	for _, path := range []stream.Path{stream.PathNICSoft} {
		t.Run(path.String(), func(t *testing.T) {
			plan1 := fault.New(1)
			dev := openSim(t, sim.Options{Faults: plan1})
			g := newNICRig(t, dev, soft.Options{})
			host, gpu := g.pinned(t, 1<<10), g.device(t, 1<<10)
			q, err := dev.OpenQueue(device.QueueOptions{})
			if err != nil {
				t.Fatal(err)
			}
			s := open(t, dev, streamcopy.Options{Path: path, NIC: g.carrier(nic.Options{})})
			plan1.Add(fault.Nth(sim.OpFill, int(plan1.Seen(sim.OpFill))).Stall())
			if err := q.Fill(mem.All(gpu), 0x5a); err != nil {
				t.Fatal(err)
			}
			e, err := q.Record()
			if err != nil {
				t.Fatal(err)
			}
			if err := s.WaitEvent(deadline(t), e); err != nil {
				t.Fatal(err)
			}
			k := submitOK(t, s, &mem.Batch{Dst: []mem.Extent{mem.All(host)}, Src: []mem.Extent{mem.All(gpu)}})
			if err := plan1.Await(deadline(t), 1); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Millisecond)
			if k.Poll() {
				t.Error("the batch did not wait")
			}
			plan1.Clear()
			if err := k.Wait(deadline(t)); err != nil {
				t.Fatal(err)
			}
			if c := k.Completion(); c.Path != path {
				t.Errorf("path %s", c.Path)
			}
			if host.Bytes()[0] != 0x5a {
				t.Errorf("the copy contains %#x, the bytes before the event", host.Bytes()[0])
			}
			e.Close()
			if err := errors.Join(s.Close(deadline(t)), q.Close(deadline(t))); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPlannerSendsBatchesByNIC uses a profile in which a NIC has a higher start-up time and a
// higher rate than the device's paths. The planner must use the NIC for large batches only, and
// each batch must see the bytes of the previous one.
func TestPlannerSendsBatchesByNIC(t *testing.T) {
	dev := openSim(t, sim.Options{Interleave: &sim.Interleave{Seed: 1}})
	g := newNICRig(t, dev, soft.Options{Schedule: &soft.Schedule{Seed: 1}})
	profile := plan.Default()
	for dir := range plan.D2H + 1 {
		m := plan.Model{Path: stream.PathNICSoft, Dir: dir, Side: plan.Scattered}
		for _, size := range profile.Sizes {
			for _, n := range profile.Counts {
				m.Times = append(m.Times, 50e3+float64(n*size)/200)
			}
		}
		profile.Models = append(profile.Models, m)
	}
	planner, err := plan.New(profile, plan.Options{HalfLife: time.Nanosecond}) // ignore corrections from measured times
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, dev, streamcopy.Options{Planner: planner, NIC: g.carrier(nic.Options{})})
	const large, small = 8 << 20, 4 << 10
	host, gpu := g.pinned(t, 2*large), g.device(t, large)
	want := host.Bytes()[:large]
	for i := range want {
		want[i] = byte(i*7 + i>>8)
	}
	for range 3 {
		clear(host.Bytes()[large:])
		var tickets []*stream.Ticket
		for _, n := range []int64{large, small, large, small} { // to the device, the first part back, all back, the first part to the device
			there := len(tickets)%3 == 0
			back := mem.Extent{Region: host, Off: large, Len: n}
			b := &mem.Batch{Dst: []mem.Extent{back}, Src: []mem.Extent{{Region: gpu, Len: n}}}
			if there {
				b = &mem.Batch{Dst: []mem.Extent{{Region: gpu, Len: n}}, Src: []mem.Extent{{Region: host, Len: n}}}
			}
			tickets = append(tickets, submitOK(t, s, b))
			if !there {
				if err := tickets[len(tickets)-1].Wait(deadline(t)); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(back.Bytes(), want[:n]) {
					t.Fatalf("%d bytes differ after the way back", n)
				}
			}
		}
		for i, k := range tickets {
			if err := k.Wait(deadline(t)); err != nil {
				t.Fatal(err)
			}
			if c := k.Completion(); (c.Path == stream.PathNICSoft) != (i%2 == 0) || c.Predicted <= 0 {
				t.Errorf("batch %d: %s (%s), predicted %v", i, c.Path, c.Reason, c.Predicted)
			}
		}
	}
	if err := s.Close(deadline(t)); err != nil {
		t.Error(err)
	}
}
