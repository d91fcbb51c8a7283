package move

import (
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/stream/copy/describe"
)

// TestSharedBatchesKeepTheirOrder: a batch that several workers share waits until those before it have landed, and holds up those
// behind it, but not its own later steps; small ones follow each other.
func TestSharedBatchesKeepTheirOrder(t *testing.T) {
	dev, err := sim.Open(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	queue, err := dev.OpenQueue(device.QueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewResident(&Env{Device: dev, Queue: queue}, ResidentOptions{Workers: 2, WorkerBytes: 4096})
	if err != nil {
		t.Fatal(err)
	}
	r, ok := m.(*Resident)
	if !ok {
		t.Fatalf("it is a %T", m)
	}
	if err := r.Prepare(); err != nil {
		t.Fatal(err)
	}
	small, large := &Batch{Shape: describe.Shape{Bytes: 4096}}, &Batch{Shape: describe.Shape{Bytes: 8192}}
	begun := &Batch{Shape: large.Shape, Sent: 4096}
	for _, tt := range []struct {
		wide  bool // the batch before
		steps int
		b     *Batch
		want  bool
	}{
		{false, 0, large, true},
		{true, 0, large, true},
		{true, 0, small, true},
		{false, 1, small, true},
		{false, 1, large, false},
		{true, 1, small, false},
		{true, 1, begun, true},
	} {
		r.wide = tt.wide
		if got := r.Room(tt.b, Flight{Steps: tt.steps, Calls: tt.steps}); got != tt.want {
			t.Errorf("%d bytes, %d sent, behind %d steps, shared %t: room %t", tt.b.Bytes, tt.b.Sent, tt.steps, tt.wide, got)
		}
	}
	failed, err := r.Quiesce(t.Context())
	for _, err := range []error{failed, err, queue.Close(t.Context()), r.Free(), dev.Close()} {
		if err != nil {
			t.Error(err)
		}
	}
}
