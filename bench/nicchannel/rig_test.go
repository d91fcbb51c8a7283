package nicchannel_test

import (
	"errors"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/ibv"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
)

// all are the access rights of registered memory.
var all = rdma.MROptions{Access: rdma.AccessLocalWrite | rdma.AccessRemoteWrite | rdma.AccessRemoteRead}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func closing(tb testing.TB, c interface{ Close() error }) {
	tb.Helper()
	tb.Cleanup(func() { check(tb, c.Close()) })
}

// softNIC opens a software NIC with the given faults.
func softNIC(tb testing.TB, faults *fault.Plan, limits soft.DeviceOptions) *registry.Registry {
	tb.Helper()
	p, err := soft.New(soft.Options{Faults: faults, Devices: []soft.DeviceOptions{limits}})
	check(tb, err)
	closing(tb, p)
	return firstNIC(tb, p)
}

// verbsNIC opens the first NIC of the machine that has an active port, or skips the test.
func verbsNIC(tb testing.TB) (*registry.Registry, rdma.ConnectOptions) {
	tb.Helper()
	p, err := ibv.Load()
	if errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(tb, "verbs", err.Error())
	}
	check(tb, err)
	closing(tb, p)
	if _, err := p.Devices(); errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(tb, "verbs", err.Error())
	}
	g := firstNIC(tb, p)
	port, err := rdma.FindPort(g.Device(), rdma.PortOptions{})
	check(tb, err)
	return g, rdma.ConnectOptions{Port: port.Number, GIDIndex: port.GIDIndex, MTU: port.MTU}
}

func firstNIC(tb testing.TB, p rdma.Provider) *registry.Registry {
	tb.Helper()
	names, err := p.Devices()
	check(tb, err)
	set := registry.NewDevices(p).NewSet(registry.Options{})
	closing(tb, set)
	g, err := set.NIC(names[0])
	check(tb, err)
	return g
}

// host returns host memory that is registered with g until the test ends.
func host(tb testing.TB, g *registry.Registry, bytes int64) *mem.Region {
	tb.Helper()
	r := memory(tb, bytes)
	check(tb, g.Register(all, r))
	tb.Cleanup(func() { check(tb, registry.Unregister(tb.Context(), []*registry.Registry{g}, r)) })
	return r
}

func memory(tb testing.TB, bytes int64) *mem.Region {
	tb.Helper()
	b, err := hostmem.Alloc(bytes)
	check(tb, err)
	tb.Cleanup(func() { check(tb, hostmem.Free(b)) })
	r, err := hostmem.Region(b)
	check(tb, err)
	return r
}
