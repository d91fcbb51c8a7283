package sim_test

import (
	"math/rand/v2"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/mem"
)

// With HostAddresses the system reuses addresses, and freed address ranges must not interfere.
// Memory is allocated and freed in overlapping sizes, and stays usable from end to end.
func TestHostAddressesAreUsedAgain(t *testing.T) {
	d, err := sim.Open(sim.Options{HostAddresses: true, MemoryBytes: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	q, err := d.OpenQueue(device.QueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var live []*mem.Region
	seen, timer := make(map[mem.DevAddr]bool), 0
	for range 400 {
		if len(live) == 8 {
			i := rng.IntN(len(live))
			if err := d.Free(live[i]); err != nil {
				t.Fatal(err)
			}
			live = append(live[:i], live[i+1:]...)
		}
		r, err := d.Alloc(4096*(1+rng.Int64N(32)), device.AllocOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if r.CPU() != 0 {
			t.Fatal("device memory has a CPU address")
		}
		if seen[r.Dev()] {
			timer++
		}
		seen[r.Dev()] = true
		live = append(live, r)
		for _, r := range live {
			if err := q.Fill(mem.All(r), 7); err != nil {
				t.Fatal(err)
			}
		}
		e, err := q.Record()
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		e.Close()
	}
	if timer == 0 {
		t.Error("no address was used again: the test shows nothing")
	}
	for _, r := range live {
		if err := d.Free(r); err != nil {
			t.Error(err)
		}
	}
	if err := q.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
