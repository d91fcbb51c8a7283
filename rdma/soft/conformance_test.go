package soft_test

import (
	"fmt"
	"testing"

	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/rdmatest"
	"github.com/kvlane/kvlane/rdma/soft"
)

// TestConformance runs the suite on one device, on two devices, and with a seeded order of all
// steps.
func TestConformance(t *testing.T) {
	two := []soft.DeviceOptions{{}, {}}
	t.Run("one device", func(t *testing.T) { conform(t, soft.Options{}, "soft0") })
	t.Run("two devices", func(t *testing.T) { conform(t, soft.Options{Devices: two}, "soft0", "soft1") })
	for seed := range uint64(4) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			conform(t, soft.Options{Devices: two, Schedule: &soft.Schedule{Seed: seed}}, "soft0", "soft1")
		})
	}
}

func conform(t *testing.T, o soft.Options, devices ...string) {
	t.Helper()
	t.Parallel() // it mostly waits
	rdmatest.Run(t, rdmatest.Config{Devices: devices, GIDIndex: 1, Open: func(t *testing.T) rdma.Provider {
		t.Helper()
		p, err := soft.New(o)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}})
}
