package store_test

import (
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	streamfile "github.com/kvlane/kvlane/stream/file"
	"github.com/kvlane/kvlane/tier/file"
)

// directOptions makes a rig use direct storage.
type directOptions struct {
	model   sim.StorageModel
	require bool
	slots   int64 // default: 4
	queues  int
	handles int
}

// directRig holds the direct-storage objects of a rig.
type directRig struct {
	st       device.Storage
	files    *streamfile.DirectFiles
	pool     *mem.SlotPool
	dumps    *mem.SlotPool
	heads    *mem.Region
	hostSlot *mem.Region
}

// deviceMemory allocates device memory with default options.
type deviceMemory struct{ device.Device }

func (d deviceMemory) Alloc(n int64) (*mem.Region, error) {
	return d.Device.Alloc(n, device.AllocOptions{})
}

func (r *rig) openDirect(sc *store.Config, fc *file.Config) {
	r.tb.Helper()
	o, d := r.o.direct, &directRig{}
	var err error
	d.st, err = r.dev.OpenStorage(device.StorageOptions{})
	r.must(err)
	d.files, err = streamfile.OpenDirect(streamfile.DirectOptions{Storage: d.st, Device: r.dev, Queues: o.queues, Handles: o.handles, OnlyGDS: o.require})
	r.must(err)
	d.pool, err = mem.NewSlotPool(deviceMemory{r.dev}, max(o.slots, 4), r.groups.MaxImageBytes())
	r.must(err)
	d.dumps, err = mem.NewSlotPool(deviceMemory{r.dev}, max(o.slots, 4), r.groups.MaxImageBytes())
	r.must(err)
	d.heads, err = r.dev.AllocHost(max(o.slots, 4) * r.groups.MaxHeaderBytes())
	r.must(err)
	d.hostSlot, err = r.dev.AllocHost(r.groups.MaxImageBytes())
	r.must(err)
	fc.Direct, sc.Direct = d.files, &store.Direct{
		Pool: d.pool, Dumps: d.dumps, HostSlot: d.hostSlot, Heads: mem.Slots{Region: d.heads, Stride: r.groups.MaxHeaderBytes()},
		Require: o.require, Reason: "simulated",
	}
	r.direct = d
}

func (r *rig) closeDirect() {
	r.tb.Helper()
	if d := r.direct; d != nil {
		r.must(d.files.Close(r.ctx()))
		r.must(d.pool.Close(r.ctx()))
		r.must(d.dumps.Close(r.ctx()))
		r.must(r.dev.Free(d.heads))
		r.must(r.dev.Free(d.hostSlot))
		r.must(d.st.Close())
		r.direct = nil
	}
}

// newDirectRig is newReadRig with direct storage.
func newDirectRig(t *testing.T, o rigOptions, ns ...int) (*rig, *readTier, *corruptReports) {
	t.Helper()
	if o.direct == nil {
		o.direct = &directOptions{model: sim.StorageModel{Aligned: true}}
	}
	if o.sumEvery == 0 && o.path == stream.PathNone {
		o.path = stream.PathKernel
	}
	return newReadRig(t, o, ns...)
}

// wantDirect checks the number of blocks that were read directly and of failed attempts, and that
// no slot is lent.
func (r *rig) wantDirect(blocks, failed int64) {
	r.tb.Helper()
	if st := r.st.Stats(); st.Direct != blocks || st.DirectFailed != failed {
		r.tb.Errorf("%d blocks were read directly, %d attempts failed, want %d and %d", st.Direct, st.DirectFailed, blocks, failed)
	}
	for _, p := range []*mem.SlotPool{r.direct.pool, r.direct.dumps} {
		if st := p.Stats(); st.Lent != 0 {
			r.tb.Errorf("%d slots of device memory are still lent", st.Lent)
		}
	}
}
