package nic_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/stream/nic"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// eventSource is a provider whose devices report the asynchronous events that the test sends.
type eventSource struct {
	rdma.Provider
	events chan rdma.AsyncEvent
}

type eventDevice struct {
	rdma.Device
	c *eventSource
}

func (c *eventSource) Open(name string) (rdma.Device, error) {
	d, err := c.Provider.Open(name)
	return &eventDevice{d, c}, err
}

func (d *eventDevice) WaitEvent(ctx context.Context) (rdma.AsyncEvent, error) {
	select {
	case e := <-d.c.events:
		return e, nil
	case <-ctx.Done():
		return rdma.AsyncEvent{}, context.Cause(ctx)
	}
}

// withEvents returns g with its first NIC opened through an eventSource.
func (g *rig) withEvents(t *testing.T) (*rig, *eventSource) {
	t.Helper()
	c := &eventSource{Provider: g.prov, events: make(chan rdma.AsyncEvent)}
	set := registry.NewDevices(c).NewSet(registry.Options{})
	t.Cleanup(func() { closeOK(t, set) })
	n, err := set.NIC(g.nics[0].Name())
	if err != nil {
		t.Fatal(err)
	}
	return &rig{dev: g.dev, prov: c, set: set, nics: []*registry.Registry{n}}, c
}

// TestDeviceReportsItsFailure checks asynchronous events. A failure of the device or of the
// stream's queue pair ends requests at once, instead of after Options.Timeout, and the error
// contains the event. Events of other queue pairs are ignored.
func TestDeviceReportsItsFailure(t *testing.T) {
	for _, tt := range []struct {
		event rdma.EventType
		own   bool
		fatal bool
	}{
		{rdma.EventDeviceFatal, false, true},
		{rdma.EventQPFatal, true, true},
		{rdma.EventQPAccessErr, true, true},
		{rdma.EventQPReqErr, false, false},
		{rdma.EventCQErr, false, false},
		{rdma.EventPortErr, false, false},
	} {
		t.Run(tt.event.String(), func(t *testing.T) {
			plan := fault.New(1)
			g, c := newRig(t, rigOptions{soft: soft.Options{Faults: plan}}).withEvents(t)
			s := g.open(t, nic.Options{})
			dst, src := g.pinned(t, 1000), g.device(t, 1000)
			plan.Add(fault.Nth(soft.OpRead, 0).Stall())
			ticket := submit(t, s, streamtest.Strided(dst, src, 20, 8))
			e := rdma.AsyncEvent{Type: tt.event}
			if tt.own {
				e.QPNum = s.PairNumber(0)
			}
			c.events <- e
			c.events <- rdma.AsyncEvent{Type: rdma.EventGIDChange} // the previous event has been delivered
			if tt.fatal {
				err := ticket.Wait(deadline(t))
				if err == nil || !strings.Contains(err.Error(), tt.event.String()) || !strings.Contains(err.Error(), "soft0") {
					t.Errorf("ticket: %v", err)
				}
				noLateWrites(t, dst)
			} else {
				time.Sleep(2 * nic.FlushTime)
				if err := s.Err(); err != nil {
					t.Errorf("broken: %v", err)
				}
				plan.Release()
				ok(t, ticket)
			}
			if err := s.Close(deadline(t)); err != nil {
				t.Errorf("close: %v", err)
			}
			plan.Release()
		})
	}
}

// TestIdleStreamReportsFailure checks that the next Submit is refused with the reason.
func TestIdleStreamReportsFailure(t *testing.T) {
	g, c := newRig(t, rigOptions{}).withEvents(t)
	s := g.open(t, nic.Options{})
	c.events <- rdma.AsyncEvent{Type: rdma.EventDeviceFatal}
	for s.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	_, err := s.Submit(t.Context(), streamtest.Strided(g.device(t, 100), g.pinned(t, 100), 1, 8))
	if err == nil || !strings.Contains(err.Error(), rdma.EventDeviceFatal.String()) {
		t.Errorf("submit: %v", err)
	}
	if err := s.Close(deadline(t)); err != nil {
		t.Errorf("close: %v", err)
	}
}
