package copy_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/nic"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// TestNICFailsABatch checks a batch that fails on a NIC. Its stream breaks too, because later
// batches may depend on the batch. Other streams of the Carrier no longer use the NIC, and report
// the cause with their first batch that would have used it.
func TestNICFailsABatch(t *testing.T) {
	cause := errors.New("lid change")
	dev := openSim(t, sim.Options{})
	plan1 := fault.New(1)
	g := newNICRig(t, dev, soft.Options{Faults: plan1})
	host, gpu := g.pinned(t, 1<<16), g.device(t, 1<<16)
	o := streamcopy.Options{Planner: &chooser{other: stream.PathCopyEngine}, NIC: g.carrier(nic.Options{})}
	s, other := open(t, dev, o), open(t, dev, o)
	batch := streamtest.Strided(gpu, host, 4, 100)
	if c := complete(t, s, batch); c.Path != stream.PathNICSoft || c.Reason != "by NIC" || c.Predicted != time.Second || c.Bytes != 400 {
		t.Errorf("completion %+v", c)
	}
	complete(t, other, batch)
	plan1.Add(fault.Nth(soft.OpWrite, int(plan1.Seen(soft.OpWrite))).Fail(cause))
	failed := submitOK(t, s, batch)
	later, err := s.Submit(deadline(t), batch)
	if err := failed.Wait(deadline(t)); !errors.Is(err, cause) || errors.Is(err, errdefs.ErrBroken) || !strings.Contains(err.Error(), "by nic-soft") {
		t.Errorf("ticket: %v", err)
	}
	if err == nil {
		err = later.Wait(deadline(t))
	}
	if !errors.Is(err, errdefs.ErrBroken) || !errors.Is(err, cause) {
		t.Errorf("a batch behind it: %v", err)
	}
	if _, err := s.Submit(deadline(t), batch); !errors.Is(err, errdefs.ErrBroken) || !errors.Is(err, cause) {
		t.Errorf("submit on the broken stream: %v", err)
	}
	if err := s.Close(deadline(t)); err != nil {
		t.Errorf("close, after the ticket returned the error: %v", err)
	}
	if !errors.Is(o.NIC.Err(), cause) {
		t.Errorf("error of the NIC stream: %v", o.NIC.Err())
	}
	s = open(t, dev, o)
	for reason, s := range map[string]*streamcopy.Stream{streamcopy.ReasonUnprepared: s, streamcopy.ReasonRefused: other} {
		for i, want := range []string{reason, "otherwise"} {
			c := complete(t, s, batch)
			if c.Path != stream.PathCopyEngine || c.Reason != want || errors.Is(c.GivenUp, cause) != (i == 0) {
				t.Errorf("batch %d of another stream: path %s (%s), given up: %v", i, c.Path, c.Reason, c.GivenUp)
			}
		}
	}
	forced := open(t, dev, streamcopy.Options{Path: stream.PathNICSoft, NIC: o.NIC})
	complete(t, forced, batch)
	if err := errors.Join(s.Close(deadline(t)), other.Close(deadline(t)), forced.Close(deadline(t))); err != nil {
		t.Error(err)
	}
}

// TestNICThatBrokeMeanwhile checks a NIC that refuses a batch without touching memory. The batch
// takes another path and reports the cause once; later batches do not report it. A forced path
// fails.
func TestNICThatBrokeMeanwhile(t *testing.T) {
	dev := openSim(t, sim.Options{})
	g := newNICRig(t, dev, soft.Options{})
	host, gpu := g.pinned(t, 1<<16), g.device(t, 1<<16)
	batch := streamtest.Strided(gpu, host, 4, 100)
	for _, path := range []stream.Path{stream.PathNone, stream.PathNICSoft} {
		var over stream.Stream
		c := g.carrier(nic.Options{})
		opened := c.Open
		c.Open = func() (stream.Stream, error) {
			var err error
			over, err = opened()
			return over, err
		}
		d := &chooser{other: stream.PathKernel}
		s := open(t, dev, streamcopy.Options{Path: path, Planner: d, NIC: c})
		complete(t, s, batch)
		if err := over.Close(deadline(t)); err != nil {
			t.Fatal(err)
		}
		if path != stream.PathNone {
			if err := submitOK(t, s, batch).Wait(deadline(t)); !errors.Is(err, errdefs.ErrClosed) {
				t.Errorf("forced: %v", err)
			}
			if err := s.Close(deadline(t)); err != nil {
				t.Error(err)
			}
			continue
		}
		gate := make(gated)
		held := streamtest.Strided(gpu, host, 4, 100)
		held.After = []mem.Dependency{gate}
		tickets := []*stream.Ticket{submitOK(t, s, held), submitOK(t, s, batch)} // both choose the NIC before it refuses the first
		close(gate)
		for i, k := range tickets {
			if err := k.Wait(deadline(t)); err != nil {
				t.Fatal(err)
			}
			c := k.Completion()
			if c.Path != stream.PathCopyEngine || c.Reason != streamcopy.ReasonRefused || errors.Is(c.GivenUp, errdefs.ErrClosed) != (i == 0) {
				t.Errorf("batch %d: path %s (%s), given up: %v", i, c.Path, c.Reason, c.GivenUp)
			}
		}
		if !errors.Is(c.Err(), errdefs.ErrClosed) {
			t.Errorf("error of the NIC stream: %v", c.Err())
		}
		if c := complete(t, s, batch); c.Path != stream.PathKernel || c.GivenUp != nil || d.asked[len(d.asked)-1].Has(stream.PathNICSoft) {
			t.Errorf("the next one: %+v", c)
		}
		if err := s.Close(deadline(t)); err != nil {
			t.Error(err)
		}
	}
}

// gated is a dependency that is done when the channel is closed.
type gated chan struct{}

func (g gated) Done() <-chan struct{} { return g }
func (g gated) Err() error            { return nil }

// TestNICStall checks that tickets of a stalled NIC stay unresolved, even if they are canceled, and
// that batches on other paths wait for them.
func TestNICStall(t *testing.T) {
	plan1 := fault.New(1, fault.Nth(soft.OpWrite, 0).Stall())
	dev := openSim(t, sim.Options{})
	g := newNICRig(t, dev, soft.Options{Faults: plan1})
	host, gpu := g.pinned(t, 1<<16), g.device(t, 1<<16)
	s := open(t, dev, streamcopy.Options{Planner: &chooser{least: 400, other: stream.PathKernel}, NIC: g.carrier(nic.Options{})})
	tickets := []*stream.Ticket{submitOK(t, s, streamtest.Strided(gpu, host, 4, 100)), submitOK(t, s, streamtest.Strided(host, gpu, 1, 100))}
	if err := plan1.Await(deadline(t), 1); err != nil {
		t.Fatal(err)
	}
	tickets[0].Cancel()
	time.Sleep(5 * time.Millisecond)
	for i, k := range tickets {
		if k.Poll() {
			t.Errorf("ticket %d has resolved while the NIC stalls: %v", i, k.Err())
		}
	}
	plan1.Clear()
	for i, k := range tickets {
		if err := k.Wait(deadline(t)); err != nil {
			t.Errorf("ticket %d: %v", i, err)
		}
	}
	if err := s.Close(deadline(t)); err != nil {
		t.Error(err)
	}
}

// TestNICThatIsSilent checks that the NIC's own timeout fails a stalled request and breaks the
// stream.
func TestNICThatIsSilent(t *testing.T) {
	plan1 := fault.New(1, fault.Nth(soft.OpWrite, 0).Stall())
	dev := openSim(t, sim.Options{})
	g := newNICRig(t, dev, soft.Options{Faults: plan1})
	host, gpu := g.pinned(t, 1<<16), g.device(t, 1<<16)
	s := open(t, dev, streamcopy.Options{Path: stream.PathNICSoft, NIC: g.carrier(nic.Options{Timeout: 20 * time.Millisecond})})
	k := submitOK(t, s, streamtest.Strided(gpu, host, 4, 100))
	if err := k.Wait(deadline(t)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ticket: %v", err)
	}
	plan1.Clear()
	if err := s.Close(deadline(t)); err != nil {
		t.Error(err)
	}
}

// TestEveryVerbOfANICFails fails operation N of each verb and of each request of a stream's NIC
// path, forced and planned. Every failure must be reported by a ticket, by Close or as a path that
// was given up. Every ticket without an error must have copied its bytes, and no resource may be
// left.
func TestEveryVerbOfANICFails(t *testing.T) {
	for _, forced := range []bool{true, false} {
		use := func(t *testing.T, plan *fault.Plan) error { t.Helper(); return useNIC(t, plan, forced) }
		name := map[bool]string{true: "forced ", false: "planned "}[forced]
		for _, op := range []string{
			soft.OpQueryPort, soft.OpCreateChannel, soft.OpCreateCQ, soft.OpCreateQP, soft.OpModifyQP, soft.OpPostSend, soft.OpClose,
			soft.OpWrite, soft.OpRead,
		} {
			t.Run(name+op, func(t *testing.T) { testkit.Sweep(t, op, errdefs.ErrNoMemory, use) })
		}
		// The number of these calls depends on scheduling.
		for _, op := range []string{soft.OpPoll, soft.OpNotify, soft.OpWaitChannel} {
			t.Run(name+op, func(t *testing.T) {
				for n := range 4 {
					plan := fault.New(uint64(n), fault.Nth(op, n).Fail(errdefs.ErrNoMemory))
					err := use(t, plan)
					if lost := plan.Unreported(err); len(lost) > 0 {
						t.Fatalf("%v was not reported; reported: %v", lost[0], err)
					}
					if n == 0 && plan.Injected() == 0 {
						t.Fatalf("no operation %q happened", op)
					}
				}
			})
		}
	}
}

// useNIC copies bytes to the device and back on a NIC, with some batches on the copy engine in
// between. It returns the joined errors of all calls.
func useNIC(t *testing.T, plan *fault.Plan, forced bool) (all error) {
	t.Helper()
	failed := func(err error) bool {
		all = errors.Join(all, err)
		return err != nil
	}
	twice := func(close func() error) { // twice closes and retries once if the first attempt fails
		if failed(close()) {
			failed(close())
		}
	}
	dev, err := sim.Open(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	mover := newQueueMover(dev)
	defer func() {
		close(mover.work)
		<-mover.done
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}()
	prov, err := soft.New(soft.Options{Mover: mover, Faults: plan})
	if err != nil {
		t.Fatal(err)
	}
	defer twice(prov.Close)
	set := registry.NewDevices(prov).NewSet(registry.Options{})
	defer twice(set.Close)
	n, err := set.NIC("soft0")
	if failed(err) {
		return all
	}
	g := &nicRig{dev: dev, prov: prov, nics: []*registry.Registry{n}}
	const copies = 80
	var regions [3]*mem.Region // from the first to the second, which is device memory, to the third
	for i := range regions {
		if i == 1 {
			regions[i], err = dev.Alloc(copies*9, device.AllocOptions{})
		} else {
			regions[i], err = dev.AllocHost(copies * 9)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := dev.Free(regions[i]); err != nil {
				t.Error(err)
			}
		}()
	}
	defer twice(func() error { return registry.Unregister(deadline(t), g.nics, regions[:]...) })
	if failed(registry.Register(g.nics, rdma.MROptions{Access: nic.Access}, regions[:]...)) {
		return all
	}
	o := streamcopy.Options{Planner: &chooser{least: 2 * 8, other: stream.PathCopyEngine}, NIC: g.carrier(nic.Options{SendDepth: 8})}
	if forced {
		o.Path = stream.PathNICSoft
	}
	s, err := streamcopy.Open(dev, o)
	if failed(err) {
		return all
	}
	defer twice(func() error { return s.Close(deadline(t)) })
	src, gpu, dst := regions[0], regions[1], regions[2]
	for i := range src.Bytes() {
		src.Bytes()[i] = byte(i * 7)
	}
	for _, size := range []int{1, 2, copies} {
		clear(dst.Bytes())
		there, back := streamtest.Strided(gpu, src, size, 8), streamtest.Strided(dst, gpu, size, 8)
		if thereAndBack(t, s, there, back, failed) {
			for i := range back.Dst {
				if !bytes.Equal(back.Dst[i].Bytes(), there.Src[i].Bytes()) {
					t.Fatalf("the tickets succeeded, and copy %d of %d did not happen", i, size)
				}
			}
		}
	}
	return all
}

// thereAndBack copies both batches and reports whether they succeeded.
func thereAndBack(t *testing.T, s *streamcopy.Stream, there, back *mem.Batch, failed func(error) bool) bool {
	t.Helper()
	ok := true
	var tickets []*stream.Ticket
	for _, b := range []*mem.Batch{there, back} {
		k, err := s.Submit(deadline(t), b)
		if ok = !failed(err) && ok; err == nil {
			tickets = append(tickets, k)
		}
	}
	for _, k := range tickets {
		ok = !failed(k.Wait(deadline(t))) && ok
		failed(k.Completion().GivenUp)
	}
	return ok
}
