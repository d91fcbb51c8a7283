package registry_test

import (
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/rdmatest"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
)

// TestEveryWatcherReceivesAnEvent checks that each watcher receives events until it is stopped.
func TestEveryWatcherReceivesAnEvent(t *testing.T) {
	_, nics := machine(t, soft.Options{}, registry.Options{})
	dev, ok := nics[0].Device().(*soft.Device)
	if !ok {
		t.Fatalf("device is a %T", nics[0].Device())
	}
	received := [2]chan rdma.EventType{make(chan rdma.EventType, 10), make(chan rdma.EventType, 10)}
	var stops []func()
	for _, h := range received {
		stops = append(stops, nics[0].Watch(func(e rdma.AsyncEvent) { h <- e.Type }))
	}
	setPort := func(active bool) {
		t.Helper()
		if err := dev.SetPort(1, active); err != nil {
			t.Fatal(err)
		}
	}
	setPort(false)
	for i, h := range received {
		if e := <-h; e != rdma.EventPortErr {
			t.Errorf("watcher %d received %s", i, e)
		}
	}
	stops[0]()
	setPort(true)
	if e := <-received[1]; e != rdma.EventPortActive {
		t.Errorf("received event %s", e)
	}
	stops[1]()
	select {
	case e := <-received[0]:
		t.Errorf("received %s after it was stopped", e)
	default:
	}
}

// TestUnreadableEventsAreReported checks that Close of the NIC returns an error of reading
// events, once.
func TestUnreadableEventsAreReported(t *testing.T) {
	plan := fault.New(1, fault.Nth(soft.OpWaitEvent, 0).Fail(nil))
	p, err := soft.New(soft.Options{Mover: rdmatest.NullMover{}, Faults: plan})
	if err != nil {
		t.Fatal(err)
	}
	set := registry.NewDevices(p).NewSet(registry.Options{})
	if _, err := set.NIC("soft0"); err != nil {
		t.Fatal(err)
	}
	if err := set.Close(); err == nil || len(plan.Unreported(err)) > 0 || !strings.Contains(err.Error(), "soft0") {
		t.Errorf("close: %v", err)
	}
	if err := set.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
