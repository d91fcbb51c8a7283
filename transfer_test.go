package kvlane_test

import (
	"context"
	"errors"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/transfer"
)

// TestDefectMemoryOfOthersPassesForTheCaches checks the registration of a cache. A cache that was
// connected before is registered already. Overlapping memory that does not belong to the Transfer
// is an error, because NICs may not reach all of the cache through it.
func TestDefectMemoryOfOthersPassesForTheCaches(t *testing.T) {
	c := testConfig(t)
	c.Device.Driver = kvlane.Host
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	e := openEngine(t, c)
	planes, page := c.Model.Layers*c.Model.PlanesPerLayer(), c.Model.PlaneBytes()
	kv, err := e.Device().Alloc(int64(planes)*page, device.AllocOptions{})
	must(err)
	t.Cleanup(func() { must(e.Device().Free(kv)) })
	memory := kvlane.CacheMemory{Pages: 1}
	for i := range planes {
		memory.Planes = append(memory.Planes, kv.Dev()+mem.DevAddr(int64(i)*page))
	}
	cache, err := e.RegisterCache(memory)
	must(err)
	t.Cleanup(func() { must(cache.Close(context.Background())) })
	nics, err := gdr.Open(e.Device(), gdr.Config{Provider: gdr.Soft}, nil)
	must(err)
	t.Cleanup(func() { must(nics.Close(context.Background())) })
	by, err := nics.Transfers()
	must(err)
	s, err := e.OpenStream()
	must(err)
	t.Cleanup(func() { must(s.Close(context.Background())) })
	open := func() *transfer.Engine {
		engine, err := transfer.Open(transfer.Options{NICs: by, Device: e.Device(), Copy: s})
		must(err)
		t.Cleanup(func() { must(engine.Close(context.Background())) })
		return engine
	}
	tr, region := kvlane.TransferBy(e, open()), kvlane.Regions(cache)[0]
	for range 2 {
		must(kvlane.RegisterLocal(tr, cache))
	}
	engine := open()
	others, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Device: region.Device(), Len: region.Len(), Dev: region.Dev()})
	must(err)
	must(engine.RegisterLocal(others))
	if err := kvlane.RegisterLocal(kvlane.TransferBy(e, engine), cache); !errors.Is(err, errdefs.ErrExists) {
		t.Errorf("memory that another has registered: %v", err)
	}
}
