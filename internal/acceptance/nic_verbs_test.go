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

// machineNICs returns the names of the machine's NICs, those of tools/rxe/run for example, or skips the test.
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

// The machine's NICs carry a replay's loads and dumps on the simulated device, every byte.
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

// Thousands of requests, over all of the machine's NICs: totals to the block, and no byte wrong. Where the link loses packets, it
// has lost some of these.
func TestVerbsCarryThousandsOfRequests(t *testing.T) {
	names := machineNICs(t)
	rdmatest.Lossy(t)
	c := softConfig(t)
	c.RDMA = gdr.Config{Provider: gdr.IBV, NICs: names, QueuePairs: 2}
	thousandsOfRequests(t, c, stream.PathNIC)
}

// TestVerbsPlanByNIC: under auto the planner has what the machine's nearest NIC takes beside what the simulated device's paths do,
// and sends loads and dumps each by what is the fastest.
func TestVerbsPlanByNIC(t *testing.T) {
	machineNICs(t)
	c := softConfig(t)
	c.RDMA.Provider, c.Store.GDR, c.Stream.ProfileDir = gdr.IBV, kvlane.GDRAuto, t.TempDir()
	plansByNIC(t, c)
}

// TestVerbsFlushLoads: where the device's driver asks for it, a load is flushed before it is reported, and fails with the flush.
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
