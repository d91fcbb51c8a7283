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

// lazyDevice is a device whose events complete only when they are waited for. It records the
// expected time of the last wait.
type lazyDevice struct {
	device.Device
	due *atomic.Pointer[time.Time]
}

type lazyQueue struct {
	*sim.Queue
	due *atomic.Pointer[time.Time]
}

type lazyEvent struct {
	device.Event
	due *atomic.Pointer[time.Time]
}

func (d lazyDevice) OpenQueue(o device.QueueOptions) (device.Queue, error) {
	q, err := d.Device.OpenQueue(o)
	if q, ok := q.(*sim.Queue); ok {
		return lazyQueue{q, d.due}, err
	}
	return nil, err
}

func (q lazyQueue) Record() (device.Event, error) {
	e, err := q.Queue.Record()
	if err != nil {
		return nil, err
	}
	return lazyEvent{e, q.due}, nil
}

func (e lazyEvent) Done() (bool, error) { return false, nil }
func (e lazyEvent) Expect(at time.Time) { e.due.Store(&at) }

// TestWaitsGetTheExpectedEnd checks that a wait for a batch gets the end that the planner expects,
// which is after the end of the previous batch.
func TestWaitsGetTheExpectedEnd(t *testing.T) {
	const predicted = time.Hour
	var due atomic.Pointer[time.Time]
	dev := openSim(t, sim.Options{})
	for _, path := range []stream.Path{stream.PathKernel, stream.PathCopyEngine} {
		due.Store(nil)
		choice := plan.Choice{Path: path, Predicted: predicted}
		s := open(t, lazyDevice{dev, &due}, streamcopy.Options{Planner: &fixedPlanner{choice: choice}})
		batch := streamtest.Strided(pinned(t, dev, 4<<20), deviceMemory(t, dev, 4<<20), 2, 1<<20)
		for range 2 {
			c := complete(t, s, batch)
			at := due.Load()
			if at == nil {
				t.Fatalf("%s: the wait got no expected end", path)
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
