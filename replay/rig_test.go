package replay

import (
	"context"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/cache"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/log"
)

// latent is the smallest geometry whose image has a page of header and a page of content, 8 KiB in
// total.
var latent = block.Geometry{Model: "test", DType: "bfloat16", Layers: 1, KVHeads: 1, HeadSize: 128, BlockTokens: 16, TPSize: 1, MLA: true}

// layered is a geometry with keys and values, several layers, and planes that are not multiples of
// 16 bytes.
var layered = block.Geometry{Model: "test", DType: "fp8_e4m3", Layers: 3, KVHeads: 1, HeadSize: 67, BlockTokens: 1, TPSize: 1}

// plainDevice hides every optional ability of a device's queues.
type plainDevice struct{ device.Device }

func (d plainDevice) OpenQueue(o device.QueueOptions) (device.Queue, error) {
	q, err := d.Device.OpenQueue(o)
	return plainQueue{q}, err
}

type plainQueue struct{ device.Queue }

// rig is a store on a device.
type rig struct {
	dev   device.Device
	store *store.Store
}

// rigOptions configures a rig.
type rigOptions struct {
	geometry block.Geometry
	slots    int64 // number of slots of the cache
	sim      sim.Options
	dir      string // directory of the file tier; empty: no file tier
	fs       dirfs.FS
	logDir   string                            // directory of the log tier below it; empty: no log tier
	device   func(device.Device) device.Device // wraps the device
	streams  streamcopy.Options
}

func newRig(tb testing.TB, o rigOptions) *rig {
	tb.Helper()
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	simulated, err := sim.Open(o.sim)
	must(err)
	var dev device.Device = simulated
	if o.device != nil {
		dev = o.device(dev)
	}
	tb.Cleanup(func() { must(dev.Close()) })
	layout, err := o.geometry.Layout()
	must(err)
	id := o.geometry.Identity("", "")
	format := block.Format{Layout: layout, Identity: id.Digest()}
	pinned, err := dev.AllocHost(o.slots * layout.ImageBytes())
	must(err)
	tb.Cleanup(func() { must(dev.Free(pinned)) })
	c, err := cache.Open(cache.Config{Memory: pinned, Formats: block.Formats{format}})
	must(err)
	tb.Cleanup(func() { must(c.Close(context.WithoutCancel(tb.Context()))) })
	var lower []tier.Tier
	if o.dir != "" {
		f, err := file.Open(tb.Context(), file.Config{Dirs: []string{o.dir}, Formats: block.Formats{format}, Identities: []block.Identity{id}, FS: o.fs})
		must(err)
		tb.Cleanup(func() { must(f.Close(context.WithoutCancel(tb.Context()))) })
		lower = append(lower, f)
	}
	if o.logDir != "" {
		l, err := log.Open(tb.Context(), log.Config{Dir: o.logDir, Formats: block.Formats{format}, Identities: []block.Identity{id}})
		must(err)
		tb.Cleanup(func() { must(l.Close(context.WithoutCancel(tb.Context()))) })
		lower = append(lower, l)
	}
	open := func() (stream.Stream, error) { return streamcopy.Open(dev, o.streams) }
	s, err := store.Open(store.Config{Formats: block.Formats{format}, Cache: c, Next: lower, OpenLoad: open, OpenDump: open})
	must(err)
	tb.Cleanup(func() { must(s.Close(context.WithoutCancel(tb.Context()))) })
	return &rig{dev: dev, store: s}
}
