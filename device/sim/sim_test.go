package sim_test

import (
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/devicetest"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestConformance(t *testing.T) {
	testkit.SkipRace(t, "TestConformanceInterleaved runs the same goroutines")
	devicetest.Run(t, func(t *testing.T) device.Device {
		t.Helper()
		d, err := sim.Open(sim.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return d
	})
}

func TestConformanceInterleaved(t *testing.T) {
	devicetest.Run(t, func(t *testing.T) device.Device {
		t.Helper()
		d, err := sim.Open(sim.Options{Interleave: &sim.Interleave{Seed: 1}})
		if err != nil {
			t.Fatal(err)
		}
		return d
	})
}
