package copy_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// patient is a device whose events are not done before somebody waits for them, and keeps when they were expected.
type patient struct {
	device.Device
	due *atomic.Pointer[time.Time]
}

type patientQueue struct {
	*sim.Queue
	due *atomic.Pointer[time.Time]
}

type patientEvent struct {
	device.Event
	due *atomic.Pointer[time.Time]
}

func (d patient) OpenQueue(o device.QueueOptions) (device.Queue, error) {
	q, err := d.Device.OpenQueue(o)
	if q, ok := q.(*sim.Queue); ok {
		return patientQueue{q, d.due}, err
	}
	return nil, err
}

func (q patientQueue) Record() (device.Event, error) {
	e, err := q.Queue.Record()
	if err != nil {
		return nil, err
	}
	return patientEvent{e, q.due}, nil
}

func (e patientEvent) Done() (bool, error) { return false, nil }
func (e patientEvent) Expect(at time.Time) { e.due.Store(&at) }

// TestWaitsAreToldWhenToLook: who waits for a batch is told when the planner expects its end, behind the batch before it.
func TestWaitsAreToldWhenToLook(t *testing.T) {
	const predicted = time.Hour
	var due atomic.Pointer[time.Time]
	dev := openSim(t, sim.Options{})
	for _, path := range []stream.Path{stream.PathKernel, stream.PathCopyEngine} {
		due.Store(nil)
		choice := plan.Choice{Path: path, Predicted: predicted}
		s := open(t, patient{dev, &due}, streamcopy.Options{Planner: &decider{choice: choice}})
		batch := streamtest.Strided(pinned(t, dev, 4<<20), deviceMemory(t, dev, 4<<20), 2, 1<<20)
		for range 2 {
			c := complete(t, s, batch)
			at := due.Load()
			if at == nil {
				t.Fatalf("%s: nobody was told", path)
			}
			if late := at.Sub(c.Started); late < predicted || late > predicted+time.Minute {
				t.Errorf("%s: expected %v after it began, predicted at %v", path, late, predicted)
			}
		}
		if err := s.Close(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
}
