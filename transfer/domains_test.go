package transfer

import (
	"fmt"
	"testing"

	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/rail"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
)

// TestDefectDeviceForEachSegment opens and closes a thousand segments, a hundred at a time. The
// engine must not open its NIC again or use a goroutine or descriptor for each segment. Afterwards
// no domain, registration, goroutine or descriptor may be left.
func TestDefectDeviceForEachSegment(t *testing.T) {
	const atOnce, rounds = 100, 10
	plan := fault.New(1)
	limits := rdma.DeviceInfo{MaxPD: atOnce + 1, MaxMR: atOnce + 1} // the engine itself uses one domain and one registration
	p, err := soft.New(soft.Options{Devices: []soft.DeviceOptions{{Limits: limits}, {Limits: limits}}, Faults: plan})
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	nics, err := rail.New(rail.Options{Devices: registry.NewDevices(p), NICs: []rail.NIC{{Name: "soft0"}, {Name: "soft1"}}})
	must(t, err)
	there := host(t, 1<<16)
	e := engine(t, Options{NICs: nics})
	before := currentUsage(t)
	for range rounds {
		var all []*Segment
		for i := range atOnce {
			s, err := e.Publish(t.Context(), fmt.Sprintf("kv-%d", i))
			must(t, err)
			_, err = s.Register(t.Context(), there, RegisterOptions{})
			must(t, err)
			all = append(all, s)
		}
		if n := plan.Seen(soft.OpOpen); n != 2 {
			t.Fatalf("%d NICs were opened", n)
		}
		noMore(t, before)
		for _, s := range all {
			must(t, s.Close(t.Context()))
		}
	}
	noMore(t, before)
	if n := plan.Seen(soft.OpAllocPD); n != 2*(atOnce*rounds+1) {
		t.Errorf("%d domains", n)
	}
}
