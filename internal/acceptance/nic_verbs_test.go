package acceptance_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rdma/ibv"
	"github.com/kvlane/kvlane/rdma/rdmatest"
	"github.com/kvlane/kvlane/stream"
)

// machineNICs returns the names of the machine's NICs, for example those of tools/rxe/run. Without
// NICs it skips the test.
func machineNICs(t *testing.T) []string {
	t.Helper()
	p, err := ibv.Load()
	if errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(t, "verbs", err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	names, err := p.Devices()
	if closeErr := p.Close(); closeErr != nil {
		t.Error(closeErr)
	}
	if errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(t, "verbs", err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// The machine's NICs copy the loads and dumps of a replay on the simulated device, and every byte
// is right.
func TestVerbsCarryAReplay(t *testing.T) {
	names := machineNICs(t)
	rdmatest.Lossy(t)
	for name, change := range map[string]func(*kvlane.Config){
		"the nearest": func(*kvlane.Config) {},
		"all":         func(c *kvlane.Config) { c.RDMA.NICs, c.RDMA.QueuePairs = names, 2 },
	} {
		for _, layerwise := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/layerwise=%t", name, layerwise), func(t *testing.T) {
				c := softConfig(t)
				c.RDMA.Provider = gdr.IBV
				change(&c)
				e := openEngine(t, c)
				for _, p := range replayOn(t, e, e, layerwise).Paths {
					if p.Path != stream.PathNIC.String() {
						t.Errorf("%s by %s", p.Direction, p.Path)
					}
				}
				t.Log(e.NICs(), e.Notes())
			})
		}
	}
}

// Thousands of requests use all of the machine's NICs. All totals are exact and no byte is wrong.
// If the link is configured to lose packets, it has lost some.
func TestVerbsCarryThousandsOfRequests(t *testing.T) {
	names := machineNICs(t)
	rdmatest.Lossy(t)
	c := softConfig(t)
	c.RDMA = gdr.Config{Provider: gdr.IBV, NICs: names, QueuePairs: 2}
	thousandsOfRequests(t, c, stream.PathNIC)
}

// TestVerbsPlanByNIC is TestAutoPlansByNIC with the machine's nearest NIC and the simulated device.
func TestVerbsPlanByNIC(t *testing.T) {
	machineNICs(t)
	c := softConfig(t)
	c.RDMA.Provider, c.Store.GDR, c.Stream.ProfileDir = gdr.IBV, kvlane.GDRAuto, t.TempDir()
	plansByNIC(t, c)
}

// TestVerbsFlushLoads checks that a load is flushed before it is reported if the device's driver
// requires it, and that it fails if the flush fails.
func TestVerbsFlushLoads(t *testing.T) {
	machineNICs(t)
	c := softConfig(t)
	c.RDMA.Provider = gdr.IBV
	flushesLoads(t, c)
}

func TestVerbsDumpWaits(t *testing.T) {
	machineNICs(t)
	c := softConfig(t)
	c.RDMA.Provider = gdr.IBV
	dumpWaits(t, c)
}
