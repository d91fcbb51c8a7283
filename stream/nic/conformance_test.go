package nic_test

import (
	"testing"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/stream/nic"
	"github.com/kvlane/kvlane/stream/streamtest"
)

func TestConformance(t *testing.T) {
	testkit.SkipRace(t, "TestConformanceStriped runs the same goroutines and more")
	streamtest.Run(t, func(t *testing.T) streamtest.Env {
		t.Helper()
		plan := fault.New(1)
		e := newRig(t, rigOptions{sim: sim.Options{Faults: plan}}).env(t, nic.Options{})
		e.Plan, e.Work = plan, sim.OpWork
		return e
	})
}

// TestConformanceStriped uses stripes, queues and requests so small that every batch of the suite
// exceeds them, over several queue pairs on two NICs. The bytes are copied as on a GPU.
func TestConformanceStriped(t *testing.T) {
	streamtest.Run(t, func(t *testing.T) streamtest.Env {
		t.Helper()
		return newRig(t, rigOptions{nics: 2, stream: true}).env(t, nic.Options{
			QueuePairs: 2, StripeBytes: 256, SendDepth: 64, RequestBytes: 3000, MaxSGE: 3,
		})
	})
}
