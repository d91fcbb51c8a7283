package gateway_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/blockio/blockiotest"
	"github.com/kvlane/kvlane/blockio/gateway"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda/cudatest"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/ibv"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
)

func TestMain(m *testing.M) {
	cudatest.UseDriverOnce()
	testkit.Main(m)
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// fabric has a NIC and a device. The CPU and device addresses of host-pinned memory of the simulated
// device differ.
type fabric struct {
	dev     device.Device
	devices *registry.Devices
	names   []string // the first is the clients', the last is the gateways'
}

func newFabric(tb testing.TB, p rdma.Provider) *fabric {
	tb.Helper()
	names, err := p.Devices()
	must(tb, err)
	dev, err := sim.Open(sim.Options{})
	must(tb, err)
	tb.Cleanup(func() { must(tb, dev.Close()) })
	return &fabric{dev: dev, devices: registry.NewDevices(p), names: names}
}

func softFabric(tb testing.TB, o soft.Options) *fabric {
	tb.Helper()
	p, err := soft.New(o)
	must(tb, err)
	tb.Cleanup(func() { must(tb, p.Close()) })
	return newFabric(tb, p)
}

// nic opens a NIC for a trust domain.
func (f *fabric) nic(tb testing.TB, name string) *registry.Registry {
	tb.Helper()
	set := f.devices.NewSet(registry.Options{})
	tb.Cleanup(func() { must(tb, set.Close()) })
	g, err := set.NIC(name)
	must(tb, err)
	return g
}

func (f *fabric) memory() mem.BufferHooks {
	return mem.BufferHooks{Alloc: f.dev.AllocHost, Free: f.dev.Free}
}

func (f *fabric) client(tb testing.TB) *blockio.RDMAOptions {
	tb.Helper()
	return &blockio.RDMAOptions{NIC: f.nic(tb, f.names[0]), Memory: f.memory()}
}

func (f *fabric) gateway(tb testing.TB, o gateway.Options) *gateway.Gateway {
	tb.Helper()
	o.NIC, o.Kind, o.Memory = f.nic(tb, f.names[len(f.names)-1]), mem.KindHostPinned, f.memory()
	g, err := gateway.New(o)
	must(tb, err)
	tb.Cleanup(func() { must(tb, g.Close(context.Background())) })
	return g
}

// transport serves connections over TCP through a gateway.
func (f *fabric) transport(tb testing.TB, s *blockiotest.Server, o *blockio.ClientOptions) {
	tb.Helper()
	g := f.gateway(tb, gateway.Options{Slots: 8, SlotBytes: 4096})
	o.RDMA = f.client(tb)
	o.Dial = listen(tb, func(nc net.Conn) { s.Serve(tb, g.Open(nc, true)) })
}

// listen serves each connection by a goroutine until the test ends.
func listen(tb testing.TB, serve func(nc net.Conn)) func(ctx context.Context) (net.Conn, error) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(tb, err)
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() { serve(c) })
		}
	})
	tb.Cleanup(func() {
		must(tb, l.Close())
		served.Wait()
	})
	return func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}
}

func TestVerbsClient(t *testing.T) {
	p, err := ibv.Load()
	if errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(t, "verbs", err.Error())
	}
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	if _, err := p.Devices(); errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(t, "verbs", err.Error())
	}
	blockiotest.Run(t, newFabric(t, p).transport)
}

func TestClientOverSoftNIC(t *testing.T) { blockiotest.Run(t, softFabric(t, soft.Options{}).transport) }
