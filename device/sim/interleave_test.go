package sim_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
)

// trace makes three queues fill one byte each, repeatedly, and returns the order of the fills.
func trace(t *testing.T, seed uint64) []int {
	t.Helper()
	const queues, each = 3, 5
	d := open(t, sim.Options{Interleave: &sim.Interleave{Seed: seed, Manual: true}})
	p := d.pin(queues)
	for i := range queues {
		q := d.queue()
		for n := range each {
			must(t, q.Fill(ext(p, int64(i), 1), byte(n+1)))
		}
	}
	var order []int
	before := slices.Clone(p.Bytes())
	for d.Step() {
		for i, v := range p.Bytes() {
			if v != before[i] {
				if v != before[i]+1 {
					t.Fatalf("queue %d changed from %d to %d", i, before[i], v)
				}
				order = append(order, i)
			}
		}
		copy(before, p.Bytes())
	}
	if len(order) != queues*each {
		t.Fatalf("%d steps for %d operations", len(order), queues*each)
	}
	return order
}

func TestInterleavingIsSeeded(t *testing.T) {
	orders := make(map[string]bool)
	for seed := range uint64(20) {
		order := trace(t, seed)
		if timer := trace(t, seed); !slices.Equal(order, timer) {
			t.Fatalf("seed %d gave %v, then %v", seed, order, timer)
		}
		orders[fmt.Sprint(order)] = true
	}
	if len(orders) < 15 {
		t.Errorf("20 seeds gave %d orders", len(orders))
	}
}

// TestInterleavingFindsAMissingWait shows the purpose of interleaving. A copy that does not wait
// for the fill of another queue fails with some seed. A copy that waits fails with none.
func TestInterleavingFindsAMissingWait(t *testing.T) {
	for _, waits := range []bool{false, true} {
		wrong := 0
		for seed := range uint64(30) {
			d := open(t, sim.Options{Interleave: &sim.Interleave{Seed: seed, Manual: true}})
			q1, q2, r, p := d.queue(), d.queue(), d.dev(8), d.pin(8)
			must(t, q1.Fill(mem.All(r), 1))
			must(t, q1.Fill(mem.All(r), 2))
			if waits {
				must(t, q2.Wait(d.event(q1)))
			}
			must(t, q2.Copy(mem.All(p), mem.All(r)))
			d.StepAll()
			if p.Bytes()[0] != 2 {
				wrong++
			}
		}
		if waits && wrong > 0 || !waits && wrong == 0 {
			t.Errorf("waiting %v: %d of 30 orders read the wrong bytes", waits, wrong)
		}
	}
}

func TestInterleavingPassesStalledQueuesBy(t *testing.T) {
	plan := fault.New(1, fault.Nth(sim.OpFill, 0).Stall())
	d := manual(t, sim.Options{Faults: plan})
	q1, q2, p := d.queue(), d.queue(), d.pin(8)
	must(t, q1.Fill(mem.All(p), 1))
	must(t, q2.Fill(ext(p, 4, 4), 2))
	if n := d.StepAll(); n != 1 || p.Bytes()[0] != 0 || p.Bytes()[4] != 2 {
		t.Fatalf("%d operations ran, memory is %v", n, p.Bytes())
	}
	plan.Release()
	if n := d.StepAll(); n != 1 || p.Bytes()[0] != 1 {
		t.Errorf("after the release %d operations ran, memory is %v", n, p.Bytes())
	}
}

func TestStepDoesNothingOnConcurrentDevices(t *testing.T) {
	d := open(t, sim.Options{})
	if d.Step() {
		t.Error("Step ran an operation")
	}
}
