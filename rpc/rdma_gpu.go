package rpc

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/internal/endpoint"
)

// GPUOptions make connections receive into blocks of device memory. The attachments of their calls
// are device memory, and only their messages cross to the host. Such connections have no streams.
type GPUOptions struct {
	// Device has the blocks. The caller closes it after the RDMA. Required.
	Device device.Device
	// BlockBytes, RegionBytes and MaxRegions are those of the blocks. Defaults: 512 KiB, 1 GiB and
	// 32.
	BlockBytes, RegionBytes int64
	MaxRegions              int
	// Queues is the number of queues for copies from the device. Default: 4.
	Queues int
}

// gpu has the device memory of connections, and copies it.
type gpu struct {
	*copier
	flush  func() error
	blocks *mem.Arena     // device memory
	heads  *mem.Arena     // pinned memory for starts of messages
	first  mem.ArenaBlock // of blocks: keeps a region, which takes long to register

	hasFirst bool
}

// openGPU prepares receiving into device memory. On error it closes everything.
func openGPU(o *RDMAOptions) (_ *gpu, err error) {
	x := *o.GPU
	setDefault(&x.Queues, 4)
	if x.Device == nil || x.Queues < 0 || x.BlockBytes < 0 {
		return nil, fmt.Errorf("receive into device memory: no device, or negative numbers: %w", errdefs.ErrInvalid)
	}
	g := &gpu{copier: newCopier(x.Device, x.Queues), flush: func() error { return nil }}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close(context.Background()))
		}
	}()
	if f, ok := x.Device.(device.RemoteWriteFlusher); ok {
		needs, err := f.NeedsFlush()
		if err != nil {
			return nil, fmt.Errorf("receive into device memory: %w", err)
		}
		if needs {
			g.flush = f.FlushRemoteWrites
		}
	}
	hooks := mem.ArenaHooks{
		Alloc: func(n int64) (*mem.Region, error) { return x.Device.Alloc(n, device.AllocOptions{}) },
		Free:  x.Device.Free,
	}
	g.blocks, err = mem.NewArena(mem.ArenaOptions{
		BlockBytes: x.BlockBytes, RegionBytes: x.RegionBytes, MaxRegions: x.MaxRegions,
		Hooks: registered(o.NIC, hooks, rdma.AccessLocalWrite|rdma.AccessRelaxedOrdering),
	})
	if err != nil {
		return nil, err
	}
	if g.first, err = g.blocks.Acquire(context.Background()); err != nil {
		return nil, err
	}
	g.hasFirst = true
	g.heads, err = mem.NewArena(mem.ArenaOptions{
		BlockBytes: endpoint.PrefetchBytes, RegionBytes: 1 << 20,
		Hooks: mem.ArenaHooks{Alloc: x.Device.AllocHost, Free: x.Device.Free},
	})
	if err == nil {
		err = g.ready(context.Background())
	}
	return g, err
}

// ready reports an error if the device cannot copy. It copies only if the last copy has failed, or
// if there was none.
func (g *gpu) ready(ctx context.Context) error {
	if g.working.Load() {
		return nil
	}
	b, err := g.heads.Acquire(ctx)
	if err != nil {
		return err
	}
	err = g.Copy(ctx, []mem.Extent{b.Extent()}, []mem.Extent{g.first.Extent().Sub(0, b.Extent().Len)})
	chain.AfterCopy(err, b.Release)
	return err
}

// wrap returns a chain's block for received bytes.
func (g *gpu) wrap(e mem.Extent, free func()) (*chain.Block, error) {
	return chain.NewDevice(e, g, free)
}

// Flush makes writes of NICs visible to the device.
func (g *gpu) Flush() error { return g.flush() }

// close frees the memory and closes the queues. It may be called again.
func (g *gpu) close(ctx context.Context) error {
	var errs []error
	if g.hasFirst {
		g.first.Release()
		g.hasFirst = false
	}
	for _, a := range []*mem.Arena{g.blocks, g.heads} {
		if a != nil {
			errs = append(errs, a.Close(ctx))
		}
	}
	return errors.Join(append(errs, g.copier.close(ctx))...)
}
