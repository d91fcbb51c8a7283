package main

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/autonic"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/unwind"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/telemetry"
)

// rpcRDMA are the flags of a client or a server by RDMA.
type rpcRDMA struct {
	on, gpu bool
	device  string
	index   int
	nics    rdmaFlags

	rdma *rpc.RDMA     // nil without --rdma
	dev  device.Device // nil without --gpu
}

func (f *rpcRDMA) register(fl *pflag.FlagSet, usage string) {
	fl.BoolVar(&f.on, "rdma", false, usage)
	fl.BoolVar(&f.gpu, "gpu", false, "with --rdma: receive into memory of the device")
	f.registerDevice(fl)
	f.nics.registerNICs(fl)
}

func (f *rpcRDMA) registerDevice(fl *pflag.FlagSet) {
	registerDevice(fl, &f.device)
	fl.IntVar(&f.index, "device-index", 0, "index of the device, from 0")
}

// open opens the NIC and the memory that the flags select. closers closes them, also after an
// error.
func (f *rpcRDMA) open(ctx context.Context, closers *unwind.Stack, tls bool) error {
	switch {
	case !f.on:
		return nil
	case tls:
		return usagef("--rdma has no effect on connections with TLS: omit the flags of credentials")
	}
	c, err := f.nics.config()
	if err != nil {
		return err
	}
	o := rpc.RDMAOptions{Memory: mem.ArenaHooks{Alloc: hostmem.AllocRegion, Free: hostmem.FreeRegion}}
	if f.gpu {
		if f.dev, err = openDevice(f.device, f.index, sim.Options{HostAddresses: !f.nics.soft()}); err != nil { // hardware NICs need them
			return err
		}
		closers.AddPlain("device", f.dev.Close)
		o.Memory, o.GPU = mem.ArenaHooks{Alloc: f.dev.AllocHost, Free: f.dev.Free}, &rpc.GPUOptions{Device: f.dev, RegionBytes: 256 << 20}
	}
	n, err := f.openNICs(ctx, c)
	if err != nil {
		return asUsage(fmt.Errorf("open NIC: %w", err))
	}
	closers.Add("NICs", n.Close)
	d, err := n.OpenDomain()
	if err != nil {
		return err
	}
	closers.AddPlain("NIC", d.Close)
	o.NIC, o.Port, o.Flush = d.NIC, d.Port(), d.Flush
	if f.rdma, err = rpc.OpenRDMA(o); err != nil {
		return err
	}
	closers.Add("RDMA", f.rdma.Close)
	return nil
}

func (f *rpcRDMA) openNICs(ctx context.Context, c gdr.Config) (*gdr.NICs, error) {
	if f.dev != nil {
		return gdr.Open(f.dev, c, nil)
	}
	return gdr.OpenHost(device.Info{NUMANode: -1}, c, autonic.Provider(ctx))
}

// export adds the memory to the metrics.
func (f *rpcRDMA) export(m *telemetry.Metrics, closers *unwind.Stack) {
	if f.rdma == nil {
		return
	}
	for name, read := range map[string]func(s *rpc.RDMAStats) mem.ArenaStats{
		"rpc-receive": func(s *rpc.RDMAStats) mem.ArenaStats { return s.Receive },
		"rpc-send":    func(s *rpc.RDMAStats) mem.ArenaStats { return s.Send },
		"rpc-device":  func(s *rpc.RDMAStats) mem.ArenaStats { return s.Device },
	} {
		if name == "rpc-device" && f.dev == nil {
			continue
		}
		m.SetArena(name, func() mem.ArenaStats {
			s := f.rdma.Stats()
			return read(&s)
		})
		closers.AddPlain("metrics", func() error { m.SetArena(name, nil); return nil })
	}
}
