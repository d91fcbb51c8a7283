package registry_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/rdmatest"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
)

// TestSetsShareDevices checks that sets of Devices open a NIC once and share it. Each set has its
// own domain and receives the NIC's events. The last set closes the NIC.
func TestSetsShareDevices(t *testing.T) {
	plan := fault.New(1)
	p, err := soft.New(soft.Options{Mover: rdmatest.NullMover{}, Faults: plan})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeOK(t, p) })
	devices := registry.NewDevices(p)
	nic := func(s *registry.Set) *registry.Registry {
		t.Helper()
		g, err := s.NIC("soft0")
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	one, two := devices.NewSet(registry.Options{}), devices.NewSet(registry.Options{})
	a, b := nic(one), nic(two)
	if a.Device() != b.Device() || a.PD() == b.PD() || plan.Seen(soft.OpOpen) != 1 {
		t.Errorf("opened %d times, devices %v and %v, domains %v and %v", plan.Seen(soft.OpOpen), a.Device(), b.Device(), a.PD(), b.PD())
	}
	received := make(chan rdma.EventType, 10)
	for _, g := range []*registry.Registry{a, b} {
		defer g.Watch(func(e rdma.AsyncEvent) { received <- e.Type })()
	}
	dev, ok := a.Device().(*soft.Device)
	if !ok {
		t.Fatalf("device is a %T", a.Device())
	}
	if err := dev.SetPort(1, false); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if e := <-received; e != rdma.EventPortErr {
			t.Errorf("received event %s", e)
		}
	}
	closeOK(t, one)
	if err := b.Register(all, gpu(t, 0, 1<<20, 4096)); err != nil {
		t.Errorf("register when another set is closed: %v", err)
	}
	// The close of the device follows those of the memory and the domain.
	plan.Add(fault.Nth(soft.OpClose, int(plan.Seen(soft.OpClose))+2).Fail(nil))
	if err := two.Close(); err == nil || len(plan.Unreported(err)) > 0 {
		t.Errorf("close: %v", err)
	}
	three := devices.NewSet(registry.Options{})
	_, err = three.NIC("soft0")
	wantErr(t, err, errdefs.ErrBusy)
	closeOK(t, two)
	nic(three)
	if n := plan.Seen(soft.OpOpen); n != 2 {
		t.Errorf("opened %d times", n)
	}
	closeOK(t, three)
}

// TestSetsShareDevicesAtOnce checks that a set never gets a NIC that another set is closing.
func TestSetsShareDevicesAtOnce(t *testing.T) {
	p, err := soft.New(soft.Options{Mover: rdmatest.NullMover{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeOK(t, p) })
	devices := registry.NewDevices(p)
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() {
			for range 200 {
				s := devices.NewSet(registry.Options{})
				g, err := s.NIC("soft0")
				if err == nil {
					_, err = g.Device().QueryPort(1)
				}
				if err := errors.Join(err, s.Close()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	running.Wait()
}
