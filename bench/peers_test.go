package bench

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/stream"
)

// Every byte that is copied between two devices is checked.
func TestPeers(t *testing.T) {
	measure := func(plan *fault.Plan, progress func(int, int, string), who ...Contender) (*Report, error) {
		var devs [2]*sim.Device
		for i := range devs {
			so := sim.Options{Index: i, MemoryBytes: 256 << 20}
			if i == 0 {
				so.Faults = plan
			}
			dev, err := sim.Open(so)
			if err != nil {
				t.Fatal(err)
			}
			devs[i] = dev
		}
		o := small(kernel)
		o.Sizes, o.Layouts, o.Directions = o.Sizes[:1], []Layout{HostContiguous}, []Direction{ToHost}
		o.Peer, o.PeerBytes, o.PeerReferenceBytes, o.Progress = devs[1], 64<<10, 128<<10, progress
		o.PeerContenders = who
		rep, err := Run(t.Context(), devs[0], opener(devs[0]), o)
		return rep, errors.Join(err, devs[0].Close(), devs[1].Close())
	}
	rep, err := measure(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := rep.Peers
	if p == nil || len(p.Points) != 3*2*2*len(PeerContenders()) || p.Reference.ToDevice.Samples == 0 || p.Reference.Both.Samples != 0 {
		t.Fatalf("peers %+v; missing %+v", p, rep.Missing)
	}
	for _, q := range p.Points {
		if q.GBps <= 0 || q.Path == "kernel" && q.Traveled != "kernel" || q.Path == Auto && q.Traveled == "" {
			t.Errorf("point %+v", q)
		}
	}
	plan := fault.New(1)
	var first []int64 // launches of each first round
	byKernel := Contender{Path: stream.PathKernel}
	if _, err := measure(plan, func(_, _ int, what string) {
		if strings.Contains(what, "kernel") && strings.Contains(what, "both ") {
			first = append(first, plan.Seen(sim.OpLaunch))
		}
	}, byKernel); err != nil {
		t.Fatal(err)
	}
	if len(first) != 3*2*2 {
		t.Fatalf("%d first turns of kernels", len(first))
	}
	for i, n := range first {
		if _, err := measure(fault.New(1, fault.Nth(sim.OpLaunch, int(n)).Corrupt()), nil, byKernel); !errors.Is(err, errdefs.ErrCorrupt) {
			t.Errorf("launch %d, the first of place %d, was corrupted: error %v, want ErrCorrupt", n, i, err)
		}
	}
}

func TestDeviceWithoutPeers(t *testing.T) {
	dev, err := sim.Open(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o := small(kernel)
	o.Sizes, o.Peer = o.Sizes[:1], dev
	rep, err := Run(t.Context(), struct{ device.Device }{dev}, opener(dev), o)
	if err := errors.Join(err, dev.Close()); err != nil {
		t.Fatal(err)
	}
	if rep.Peers != nil || len(rep.Missing) != 1 || rep.Missing[0].Path != "peers" {
		t.Errorf("peers %+v, missing %+v", rep.Peers, rep.Missing)
	}
}
