package sim_test

import (
	"context"
	"errors"
	"math/bits"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

// everything uses each operation of a device twice, joins all errors and releases all resources.
func everything(t *testing.T, plan *fault.Plan) error {
	t.Helper()
	d, err := sim.Open(sim.Options{Faults: plan})
	must(t, err)
	var reported []error
	report := func(err error) bool { reported = append(reported, err); return err == nil }
	hold := func(r *mem.Region, err error) *mem.Region {
		report(err)
		return r
	}
	for range 2 {
		r, p := hold(d.Alloc(4096, device.AllocOptions{})), hold(d.AllocHost(4096))
		q, err := d.OpenQueue(device.QueueOptions{})
		if report(err) && r != nil && p != nil {
			reported = append(reported, work(t, asQueue(t, q), r, p))
		}
		if err == nil {
			report(q.Close(t.Context()))
		}
		for _, reg := range []*mem.Region{r, p} {
			if reg != nil && !report(d.Free(reg)) {
				report(d.Free(reg))
			}
		}
	}
	report(d.Close())
	return errors.Join(reported...)
}

func work(t *testing.T, q *sim.Queue, r, p *mem.Region) error {
	t.Helper()
	words(p, 0, uint64(r.Dev()), uint64(p.Dev()), 8)
	err := errors.Join(
		q.Copy(mem.All(r), mem.All(p)),
		q.CopyBatch([]mem.Extent{ext(p, 1024, 8)}, []mem.Extent{ext(r, 0, 8)}),
		q.Fill(ext(r, 64, 64), 1),
		q.Launch(launch(device.KernelCopyList, uint64(p.Dev()), 1)),
	)
	e, errRecord := q.Record()
	if errRecord != nil {
		return errors.Join(err, errRecord)
	}
	defer e.Close()
	return errors.Join(err, q.Wait(e), e.Wait(t.Context()))
}

func TestEveryFailedOperationIsReported(t *testing.T) {
	for _, op := range []string{
		sim.OpAlloc, sim.OpAllocHost, sim.OpFree, sim.OpOpen, sim.OpCallCopy, sim.OpCallBatch, sim.OpCallFill, sim.OpCallLaunch,
		sim.OpRecord, sim.OpWait, sim.OpCopy, sim.OpBatch, sim.OpFill, sim.OpLaunch, sim.OpWork,
	} {
		t.Run(op, func(t *testing.T) {
			testkit.Sweep(t, op, errdefs.ErrNoSpace, everything)
		})
	}
}

func TestRegistrationFails(t *testing.T) {
	plan := fault.New(1, fault.Nth(sim.OpRegister, 0).Fail(nil))
	d := open(t, sim.Options{Faults: plan})
	_, err := d.RegisterHost(make([]byte, 8)[:0])
	if len(plan.Unreported(err)) != 0 || plan.Injected() != 1 {
		t.Errorf("register: %v", err)
	}
}

// patternKernels prepares one page of 64 bytes in r, and returns the launches that fill and check
// it. The counter is at byte 256 of p.
func patternKernels(r, p *mem.Region) (fill, check *device.Kernel) {
	words(p, 512, uint64(r.Dev()), 64, 64, 0, 0, 99) // plane, pair, seed
	a := uint64(p.Dev()) + 512
	return launch(device.KernelPatternFill, a, 1, a+32, 1, a+40),
		launch(device.KernelPatternCheck, a, 1, a+32, 1, a+40, uint64(p.Dev())+256)
}

func TestCorruptFlipsOneBit(t *testing.T) {
	tests := map[string]struct {
		op   string
		work func(q *sim.Queue, r, p *mem.Region) error
	}{
		"copy": {sim.OpCopy, func(q *sim.Queue, r, p *mem.Region) error { return q.Copy(ext(r, 0, 64), ext(p, 0, 64)) }},
		"fill": {sim.OpFill, func(q *sim.Queue, r, _ *mem.Region) error { return q.Fill(ext(r, 0, 64), 0) }},
		"batch": {sim.OpBatch, func(q *sim.Queue, r, p *mem.Region) error {
			return q.CopyBatch([]mem.Extent{ext(r, 0, 32), ext(r, 32, 32)}, []mem.Extent{ext(p, 0, 32), ext(p, 32, 32)})
		}},
		"list": {sim.OpLaunch, func(q *sim.Queue, r, p *mem.Region) error {
			words(p, 512, uint64(r.Dev()), uint64(p.Dev()), 40, uint64(r.Dev())+40, uint64(p.Dev()), 24)
			return q.Launch(launch(device.KernelCopyList, uint64(p.Dev())+512, 2))
		}},
		"paged": {sim.OpLaunch, func(q *sim.Queue, r, p *mem.Region) error {
			words(p, 512, uint64(r.Dev()), 64, 64, 0, 0)
			a := uint64(p.Dev()) + 512
			return q.Launch(launch(device.KernelCopyPaged, a, 1, a+32, 1, uint64(p.Dev()), 64, 2))
		}},
		"pattern": {sim.OpLaunch, func(q *sim.Queue, r, p *mem.Region) error {
			fill, _ := patternKernels(r, p)
			return q.Launch(fill)
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			run := func(seed uint64, rules ...fault.Rule) []byte {
				plan := fault.New(seed, rules...)
				d := open(t, sim.Options{Faults: plan})
				q, r, p := d.queue(), d.dev(64), d.pin(4096)
				must(t, tt.work(q, r, p))
				must(t, d.sync(q))
				if plan.Injected() != len(rules) {
					t.Fatalf("%d faults for %d rules", plan.Injected(), len(rules))
				}
				return d.read(r)
			}
			good := run(0)
			for seed := range uint64(20) {
				bad, flipped := run(seed, fault.Nth(tt.op, 0).Corrupt()), 0
				for i := range bad {
					flipped += bits.OnesCount8(bad[i] ^ good[i])
				}
				if flipped != 1 {
					t.Fatalf("seed %d: %d bits differ", seed, flipped)
				}
			}
		})
	}
}

func TestPatternCheckCountsWhatCorruptDid(t *testing.T) {
	d := open(t, sim.Options{Faults: fault.New(3, fault.Nth(sim.OpLaunch, 0).Corrupt())})
	q, r, p := d.queue(), d.dev(64), d.pin(4096)
	fill, check := patternKernels(r, p)
	must(t, q.Launch(fill))
	must(t, q.Launch(check))
	must(t, d.sync(q))
	if p.Bytes()[256] != 1 {
		t.Errorf("%d bytes found wrong, want 1", p.Bytes()[256])
	}
}

func TestCorruptPatternCheckMiscounts(t *testing.T) {
	d := open(t, sim.Options{Faults: fault.New(3, fault.Nth(sim.OpLaunch, 1).Corrupt())})
	q, r, p := d.queue(), d.dev(64), d.pin(4096)
	fill, check := patternKernels(r, p)
	must(t, q.Launch(fill))
	must(t, q.Launch(check))
	must(t, d.sync(q))
	if count(p.Bytes()[256:264], 0) != 7 {
		t.Errorf("the counter of a good page is %#x, want one bit wrong", p.Bytes()[256:264])
	}
}

func TestPartialDoesHalfAndFails(t *testing.T) {
	plan := fault.New(1, fault.Nth(sim.OpWork, 0).Partial(nil))
	d := open(t, sim.Options{Faults: plan})
	q, r, p := d.queue(), d.dev(64), d.pin(64)
	must(t, q.Copy(mem.All(r), mem.All(p)))
	if err := d.sync(q); len(plan.Unreported(err)) != 0 {
		t.Errorf("the event returns %v", err)
	}
	if got := d.read(r); count(got[:32], 0) != 32 || count(got[32:], sim.PoisonFresh) != 32 {
		t.Errorf("memory is %#x", got)
	}
}

func TestStallHoldsItsQueueOnly(t *testing.T) {
	plan := fault.New(1, fault.Nth(sim.OpCopy, 1).Stall())
	d := open(t, sim.Options{Faults: plan})
	q1, q2, r, p := d.queue(), d.queue(), d.dev(64), d.pin(64)
	must(t, q1.Copy(mem.All(r), mem.All(p)))
	first := d.event(q1)
	must(t, q1.Copy(mem.All(r), mem.All(p)))
	second := d.event(q1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, plan.Await(ctx, 1))
	must(t, first.Wait(ctx))
	if done, err := second.Done(); done || err != nil {
		t.Errorf("stalled work: done %v, %v", done, err)
	}
	must(t, q2.Fill(mem.All(p), 1))
	must(t, d.sync(q2))
	plan.Release()
	must(t, second.Wait(ctx))
}
